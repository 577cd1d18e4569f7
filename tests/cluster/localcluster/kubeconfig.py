"""Kubeconfig files that carry the cluster's CA, so that nothing needs to skip verification."""

import base64
from pathlib import Path

import yaml

from localcluster.paths import write_atomically


def write_kubeconfig(
    path: Path, cluster: str, server: str, ca: Path, token: str, user: str, namespace: str = ""
) -> None:
    """Writes a kubeconfig with one cluster, one user by token and one context, readable by its owner alone."""
    context = {"cluster": cluster, "user": user} | ({"namespace": namespace} if namespace else {})
    authority = base64.b64encode(ca.read_bytes()).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": cluster, "cluster": {"server": server, "certificate-authority-data": authority}}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": cluster, "context": context}],
        "current-context": cluster,
    }
    write_atomically(path, yaml.safe_dump(config, sort_keys=False))
