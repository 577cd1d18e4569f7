"""The only package that talks to the Kubernetes API server.

`port.KubeApi` is the interface that the rest of the operator sees, `client.KubeClient` its one adapter.
"""
