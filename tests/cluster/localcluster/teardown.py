"""Removing everything of a cluster from what its run folder records, also when its creator was killed at any moment."""

import contextlib
import functools
import os
import subprocess
from pathlib import Path

from localcluster import network, processes
from localcluster.node import cni_network_name, containerd_socket
from localcluster.paths import run_root
from localcluster.processes import ProcessId
from localcluster.state import ClusterState, all_states, remove_dir
from localcluster.waiting import wait_for

_SHIM = "containerd-shim-runc-v2"
_CGROUP_ROOT = Path("/sys/fs/cgroup")
_POD_LOG_LINKS = Path("/var/log/containers")
_CNI_RESULTS = Path("/var/lib/cni/results")
_DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")


def remove(state: ClusterState) -> None:
    """Ends the cluster's processes and containers, then removes mounts, namespace, links, cgroups and files."""
    processes.kill(recorded_processes(state))
    containers = _container_ids(state)
    _kill_shims(state)
    unmount_below(state.dir)
    if state.network is not None:
        network.remove(state.network)
        _remove_cgroups(containers)
        _remove_outside_files(state)
    remove_dir(state.name)


def recorded_processes(state: ClusterState) -> list[ProcessId]:
    """Running processes of the recorded components, and those whose start was not recorded before a crash.

    The latter are known by an argument list that names this run folder and equals the recorded one.
    """
    found = [one.process for one in state.components.values() if one.process is not None and one.alive]
    known = {one.pid for one in found}
    wanted = {tuple(one.argv) for one in state.components.values()}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in known:
            continue
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            argv = tuple((entry / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1])
            # A process caught before nsenter's exec still has nsenter's arguments in front.
            if argv in wanted or (argv[:1] == ("nsenter",) and argv[3:] in wanted):
                one = processes.identify(int(entry.name))
                found += [one] if one else []
    return found


def _kill_shims(state: ClusterState) -> None:
    address = str(containerd_socket(state.dir))
    # A shim may be forking while it is looked at: look again until nothing is found.
    for _ in range(10):
        found = processes.descendants(processes.with_argument(_SHIM, address))
        if not found:
            return
        processes.kill(found)


def _container_ids(state: ClusterState) -> set[str]:
    folders = [state.dir / "runc" / "k8s.io", state.dir / "run" / "io.containerd.runtime.v2.task" / "k8s.io"]
    return {entry.name for folder in folders if folder.is_dir() for entry in folder.iterdir()}


def mounts_below(folder: Path) -> list[str]:
    """Mount points at or below a folder, the deepest first."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        # Field 5 is the mount point, with blanks and the like as octal escapes.
        point = line.split()[4].encode().decode("unicode_escape")
        if point == str(folder) or point.startswith(f"{folder}/"):
            found.append(point)
    return sorted(found, key=len, reverse=True)


def unmount_below(folder: Path) -> None:
    """Detaches all mounts at or below a folder, also stacked ones."""
    while points := mounts_below(folder):
        for point in points:
            subprocess.run(["umount", "--lazy", point], check=True, capture_output=True)


def _remove_cgroups(containers: set[str]) -> None:
    hierarchies = [_CGROUP_ROOT, *(entry for entry in _CGROUP_ROOT.iterdir() if entry.is_dir())]
    for hierarchy in hierarchies:
        parent = hierarchy / "k8s.io"
        for container in containers:
            group = parent / container
            # A group stays busy until the last killed process in it has been reaped, which is up to its parent.
            wait_for(f"the end of {group}", functools.partial(_remove_cgroup, group), 20, interval=0.02)
        with contextlib.suppress(OSError):
            # Shared by all clusters of the machine: goes with the last one.
            parent.rmdir()


def _remove_cgroup(group: Path) -> bool:
    """Removes a control group and those below it, the deepest first. True when it is gone."""
    for folder, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(OSError):
            Path(folder).rmdir()
    return not group.exists()


def _remove_outside_files(state: ClusterState) -> None:
    """Removes what kubelet and CNI write at fixed places, by the run folder and the network name in it."""
    if _POD_LOG_LINKS.is_dir():
        for link in _POD_LOG_LINKS.iterdir():
            if link.is_symlink() and str(link.readlink()).startswith(f"{state.dir}/"):
                link.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            _POD_LOG_LINKS.rmdir()
    if not any(other.network for other in all_states() if other.name != state.name):
        _remove_device_plugin_folder()
    if _CNI_RESULTS.is_dir():
        for result in _CNI_RESULTS.glob(f"{cni_network_name(state)}-*"):
            # The names of two clusters may start alike, so the container's id must follow at once.
            if len(result.name) == len(cni_network_name(state)) + len("-") + 64 + len("-eth0"):
                result.unlink(missing_ok=True)
        for folder in (_CNI_RESULTS, _CNI_RESULTS.parent):
            with contextlib.suppress(OSError):
                folder.rmdir()


def _remove_device_plugin_folder() -> None:
    """The kubelet puts its device plugin socket at a fixed place, whatever its root folder is."""
    for name in ("kubelet.sock", "kubelet_internal_checkpoint"):
        (_DEVICE_PLUGINS / name).unlink(missing_ok=True)
    for folder in (_DEVICE_PLUGINS, _DEVICE_PLUGINS.parent):
        with contextlib.suppress(OSError):
            folder.rmdir()


def remove_unrecorded(name: str) -> bool:
    """Removes a run folder whose state file was never written. Nothing was started before that file."""
    folder = run_root() / name
    if not folder.is_dir():
        return False
    unmount_below(folder)
    remove_dir(name)
    return True
