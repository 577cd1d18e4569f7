"""Real Kubernetes clusters on one machine, for tests and the demo, built from package registries alone.

`LocalCluster` is the entry point; `python -m localcluster --help` shows the same from a shell.
"""

from localcluster.cluster import ClusterOptions, LocalCluster
from localcluster.errors import ClusterError
from localcluster.faults import Fault, FaultProxy

__all__ = ["ClusterError", "ClusterOptions", "Fault", "FaultProxy", "LocalCluster"]
