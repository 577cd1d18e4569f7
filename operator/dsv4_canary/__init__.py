"""Canary sidecar: proves a prefill/decode pair with real tool calls before and while it serves.

One process beside every engine. It sends a synthetic tool call through the real prefill -> KV transfer ->
decode path, classifies the reply, and answers kubelet, operator and Prometheus from cached results. It
imports neither kopf nor a Kubernetes client and needs no rights in the cluster.
"""

__version__ = "0.1.0"
