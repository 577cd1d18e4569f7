"""What must hold before a real node is started; every refusal names its remedy."""

import os
import shutil
from pathlib import Path

from localcluster.errors import ClusterError
from localcluster.node import CNI_BIN_DIRS

_PROGRAMS = ("ip", "nft", "nsenter", "umount")
_CNI_PLUGINS = ("ptp", "host-local")
_INSTALL = "run tests/cluster/install-prerequisites.sh node"


def check_node_mode() -> None:
    """Raises ClusterError when this machine or user cannot run a node."""
    if os.geteuid() != 0:
        raise ClusterError("node mode makes network namespaces, mounts and containers: run it as root")
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    missing += [f"CNI plugin {name}" for name in _CNI_PLUGINS if not _has_plugin(name)]
    if missing:
        raise ClusterError(f"missing: {', '.join(missing)}; {_INSTALL}")
    foreign = [entry.name for entry in Path("/proc").iterdir() if _command_name(entry) == "kubelet"]
    if foreign:
        # Both kubelets would own /var/lib/kubelet/device-plugins.
        raise ClusterError(f"this machine is a Kubernetes node already (kubelet, pid {foreign[0]}): use that cluster")


def _has_plugin(name: str) -> bool:
    return any((Path(folder) / name).is_file() for folder in CNI_BIN_DIRS)


def _command_name(entry: Path) -> str:
    try:
        return (entry / "comm").read_text().strip() if entry.name.isdigit() else ""
    except OSError:
        return ""
