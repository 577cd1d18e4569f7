"""What is recorded of a cluster in its run folder, so that any later process can find, use and remove it."""

import json
import re
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from localcluster.errors import ClusterError
from localcluster.paths import run_root, write_atomically
from localcluster.processes import ProcessId

_NAME = re.compile(r"^[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?$")


@dataclass
class ComponentState:
    """One started component: how it was started (to start it again) and the process of the last start."""

    argv: list[str]
    env: dict[str, str]
    netns: str | None
    pid: int | None = None
    start_ticks: int | None = None

    @property
    def process(self) -> ProcessId | None:
        if self.pid is None or self.start_ticks is None:
            return None
        return ProcessId(self.pid, self.start_ticks)

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.alive()


@dataclass
class Network:
    """Addresses of a cluster in a network namespace of its own; all in one private block."""

    block: str
    netns: str
    host_link: str
    host_address: str
    node_address: str
    pod_cidr: str
    service_cidr: str


@dataclass
class ClusterState:
    """Everything about one cluster that must survive its creator."""

    name: str
    mode: str
    options: dict[str, Any]
    owner: dict[str, int] | None = None
    """Process for whose life the cluster was made (a pytest run); None for a cluster that stays until `down`."""
    ports: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    network: Network | None = None
    components: dict[str, ComponentState] = field(default_factory=dict)
    ready: bool = False

    @property
    def dir(self) -> Path:
        return cluster_dir(self.name)

    @property
    def orphaned(self) -> bool:
        """True when the cluster belongs to a process that no longer runs."""
        return self.owner is not None and not ProcessId(**self.owner).alive()

    def save(self) -> None:
        write_atomically(self.dir / "state.json", json.dumps(asdict(self), indent=1))


def cluster_dir(name: str) -> Path:
    """Run folder of a cluster. Raises ClusterError for a name that cannot be one."""
    if not _NAME.match(name):
        raise ClusterError(f"cluster name {name!r} must be 1 to 20 of a-z, 0-9 and '-', and start and end without '-'")
    return run_root() / name


def load(name: str) -> ClusterState | None:
    """State of a cluster, None when there is none of this name."""
    path = cluster_dir(name) / "state.json"
    try:
        raw = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    network = raw.pop("network")
    components = raw.pop("components")
    return ClusterState(
        **raw,
        network=Network(**network) if network else None,
        components={key: ComponentState(**value) for key, value in components.items()},
    )


def folder_names() -> list[str]:
    """Names of all run folders, also of clusters whose start was cut short."""
    return sorted(entry.name for entry in run_root().iterdir() if entry.is_dir() and _NAME.match(entry.name))


def all_states() -> list[ClusterState]:
    """Every recorded cluster of this user, by name."""
    return [state for name in folder_names() if (state := load(name)) is not None]


def remove_dir(name: str) -> None:
    """Removes the run folder of a cluster."""
    shutil.rmtree(cluster_dir(name), ignore_errors=False)
