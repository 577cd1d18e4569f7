"""Starting, stopping and watching the components that a cluster's state records."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from localcluster import processes
from localcluster.api import Api, ApiError
from localcluster.controlplane import etcd_url
from localcluster.errors import ClusterError
from localcluster.report import say
from localcluster.state import ClusterState
from localcluster.waiting import wait_for

API_TIMEOUT = 90.0
_TAIL_LINES = 15

_HTTP_POST = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], data=sys.argv[2].encode(), headers={"Content-Type": "application/json"})
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
sys.stdout.write(opener.open(request, timeout=30).read().decode())
"""


def log_path(state: ClusterState, component: str) -> Path:
    """Output of a component since the cluster was made."""
    return state.dir / "logs" / f"{component}.log"


def start_missing(state: ClusterState, names: Iterable[str]) -> None:
    """Starts those of the named components that do not run, and records them."""
    for name in names:
        component = state.components.get(name)
        if component is None:
            raise ClusterError(f"cluster {state.name} has no component {name}; it has {sorted(state.components)}")
        if component.alive:
            continue
        say(f"starting {name}")
        started = processes.start(component.argv, log_path(state, name), component.env, component.netns, cwd=state.dir)
        component.pid, component.start_ticks = started.pid, started.start_ticks
        state.save()


def forget_dead(state: ClusterState) -> None:
    """Forgets processes that ended by themselves, so that they are started again instead of being reported."""
    processes.reap()
    for component in state.components.values():
        if not component.alive:
            component.pid = component.start_ticks = None


def stop(state: ClusterState, name: str, grace: float) -> None:
    """Stops one component and records that it is meant to be down."""
    component = state.components.get(name)
    if component is None:
        raise ClusterError(f"cluster {state.name} has no component {name}; it has {sorted(state.components)}")
    if component.process is not None:
        processes.stop([component.process], grace)
    component.pid = component.start_ticks = None
    state.save()


def check_alive(state: ClusterState) -> None:
    """Raises ClusterError with the end of its log when a component ended that nobody stopped."""
    processes.reap()
    for name, component in state.components.items():
        if component.pid is not None and not component.alive:
            raise ClusterError(f"{name} ended by itself:\n{tail(log_path(state, name))}")


def tail(path: Path, lines: int = _TAIL_LINES) -> str:
    """Last lines of a log."""
    if not path.is_file():
        return "(no log)"
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


def print_log_tails(folder: Path) -> None:
    """Prints the end of every log: what is left of a cluster that did not start."""
    for path in sorted(folder.glob("*.log")):
        print(f"--- {path.name}\n{tail(path)}", file=sys.stderr)


def wait_api(state: ClusterState, api: Api) -> None:
    """Waits until the API server says that it is ready."""

    def ready() -> bool:
        check_alive(state)
        try:
            return bool(api.request("GET", "/readyz", timeout=5) == "ok")
        except ApiError:
            return False

    wait_for("the API server", ready, API_TIMEOUT)


def answers(url: str) -> bool:
    """True when a plain HTTP endpoint answers 200."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError:
        return False


def post_in_cluster(state: ClusterState, url: str, body: dict[str, Any]) -> Any:
    """POSTs JSON to an address of the cluster's own loopback, through a helper process in its namespace."""
    prefix = ["nsenter", f"--net=/run/netns/{state.network.netns}", "--"] if state.network else []
    command = [*prefix, sys.executable, "-c", _HTTP_POST, url, json.dumps(body)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"POST {url}: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(done.stdout)


def compact_etcd(state: ClusterState) -> int:
    """Compacts etcd at its present revision through its JSON gateway and returns that revision."""
    base = etcd_url(state)
    status = post_in_cluster(state, f"{base}/v3/maintenance/status", {})
    revision = int(status["header"]["revision"])
    post_in_cluster(state, f"{base}/v3/kv/compaction", {"revision": str(revision), "physical": True})
    return revision
