"""Starting and stopping processes by pid, safe against pid reuse and against the death of who started them."""

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from localcluster.errors import ClusterError

_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class ProcessId:
    """A pid together with its start time in clock ticks since boot (proc(5), stat field 22): unique until reboot."""

    pid: int
    start_ticks: int

    def alive(self) -> bool:
        """True while this very process runs; a zombie counts as dead."""
        return start_ticks(self.pid) == self.start_ticks

    def signal(self, number: int) -> None:
        """Sends a signal if this very process still runs."""
        if self.alive():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return


def _stat_fields(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name (field 2) may contain blanks and brackets, so fields are counted from its end.
    return text.rpartition(")")[2].split()


def start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot, None when it is gone or a zombie."""
    fields = _stat_fields(pid)
    if fields is None or fields[0] in "ZX":
        return None
    return int(fields[19])


def identify(pid: int) -> ProcessId | None:
    """Identity of a running process, None when it is gone."""
    ticks = start_ticks(pid)
    return None if ticks is None else ProcessId(pid, ticks)


def this_process() -> ProcessId:
    """Identity of the calling process."""
    found = identify(os.getpid())
    assert found is not None
    return found


def start(
    argv: Sequence[str], log: Path, env: dict[str, str] | None = None, netns: str | None = None, cwd: Path | None = None
) -> ProcessId:
    """Starts a process in a session of its own (Ctrl-C does not reach it), output appended to `log`.

    With `netns` it runs in that network namespace while it keeps the host's mounts (`nsenter` execs, so the pid stays).
    """
    prefix = [] if netns is None else ["nsenter", f"--net=/run/netns/{netns}", "--"]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        process = subprocess.Popen(
            [*prefix, *argv],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            start_new_session=True,
        )
    found = identify(process.pid)
    _children[process.pid] = process
    if found is None:
        raise ClusterError(f"{argv[0]} {argv[1] if len(argv) > 1 else ''} ended at once; see {log}")
    return found


# Popen objects of own children, kept so that they are reaped and never become zombies.
_children: dict[int, "subprocess.Popen[bytes]"] = {}


def reap() -> None:
    """Collects ended children of this process."""
    for pid, process in list(_children.items()):
        if process.poll() is not None:
            del _children[pid]


def _wait_gone(ids: Iterable[ProcessId], timeout: float) -> list[ProcessId]:
    deadline = time.monotonic() + timeout
    left = list(ids)
    while True:
        reap()
        left = [one for one in left if one.alive()]
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(_POLL_SECONDS)


def stop(ids: Sequence[ProcessId], grace: float = 5.0) -> None:
    """Ends processes: SIGTERM, and SIGKILL for those that still run after `grace` seconds. Returns when all are."""
    for one in ids:
        one.signal(signal.SIGTERM)
    left = _wait_gone(ids, grace)
    kill(left)


def kill(ids: Sequence[ProcessId]) -> None:
    """Ends processes with SIGKILL and waits until they are gone."""
    for one in ids:
        one.signal(signal.SIGKILL)
    left = _wait_gone(ids, 10.0)
    if left:
        raise ClusterError(f"processes survive SIGKILL: {[one.pid for one in left]}")


def descendants(roots: Iterable[int]) -> list[ProcessId]:
    """Roots and all their descendants at this moment."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat_fields(int(entry.name))) is not None:
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[ProcessId] = []
    todo = list(roots)
    while todo:
        pid = todo.pop()
        todo += children.get(pid, [])
        if (one := identify(pid)) is not None:
            found.append(one)
    return found


def with_argument(program: str, argument: str) -> list[int]:
    """Pids of processes whose program has this file name and whose arguments contain `argument` exactly."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            argv = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if Path(argv[0]).name == program and argument in argv:
            found.append(int(entry.name))
    return found
