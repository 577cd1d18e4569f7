"""Simulated pairs with real sidecars as plain processes on loopback: what needs no cluster to be shown."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from canary_lab import Pod
from localcluster.ports import free_port
from localcluster.waiting import wait_for
from operator_process import ROOT

MODEL = "deepseek-v4"
ROLES = ("prefill", "decode")
SETTINGS = {"version": 1, "model": MODEL, "intervalSeconds": 1, "timeoutSeconds": 10, "failureThreshold": 3}


class LocalPair:
    """One prefill and one decode, a sidecar beside each."""

    def __init__(
        self,
        folder: Path,
        *,
        env: Mapping[str, str] = {},
        prefill_flags: Sequence[str] = (),
        sidecar_env: Mapping[str, str] = {},
        settings: Mapping[str, Any] = {},
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.engine = {role: free_port() for role in ROLES}
        self.sidecar = {role: free_port() for role in ROLES}
        self.bootstrap = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._env, self._flags, self._sidecar_env = env, prefill_flags, sidecar_env
        (folder / "canary.json").write_text(json.dumps(SETTINGS | dict(settings)))

    def start_engines(self) -> None:
        for role in ROLES:
            command = [
                *(sys.executable, "-m", "sglang.launch_server", "--model-path", "/models/v4", "--host", "127.0.0.1"),
                *("--served-model-name", MODEL, "--port", str(self.engine[role]), "--disaggregation-mode", role),
                *("--disaggregation-transfer-backend", "nixl", "--disaggregation-bootstrap-port", str(self.bootstrap)),
                *("--tool-call-parser", "deepseekv4", "--reasoning-parser", "deepseek-v4"),
                *("--enable-metrics", "--enable-cache-report"),
                *(self._flags if role == "prefill" else ()),
            ]
            env = {"PYTHONPATH": str(ROOT / "images/engine-sim/src"), "SGLANG_HOST_IP": "127.0.0.1"}
            env |= {"DSV4_SIM_STARTUP_SECONDS": "0", "DSV4_SIM_HEALTH_SECONDS": "0.2"} | dict(self._env)
            if role == "decode":
                env["DSV4_SIM_POOL_PAGES"] = "1024"
            self._start(f"engine-{role}", command, env)

    def start_sidecars(self) -> None:
        for role, other in (ROLES, ROLES[::-1]):
            env = {
                "PYTHONPATH": str(ROOT / "operator"),
                "DSV4_CANARY_CONFIG": str(self.folder / "canary.json"),
                "DSV4_CANARY_ROLE": role,
                "DSV4_CANARY_LISTEN_PORT": str(self.sidecar[role]),
                "DSV4_CANARY_ENGINE_URL": f"http://127.0.0.1:{self.engine[role]}",
                "DSV4_CANARY_PEER_HOST": "127.0.0.1",
                "DSV4_CANARY_PEER_PORT": str(self.engine[other]),
                "DSV4_CANARY_BOOTSTRAP_PORT": str(self.bootstrap),
                "DSV4_CANARY_FINGERPRINT": "abcdef",
                "POD_NAME": f"pod-{role}",
                "POD_UID": f"uid-{role}",
                "POD_IP": "127.0.0.1",
            }
            self._start(
                f"sidecar-{role}", [sys.executable, "-m", "dsv4_canary", "serve"], env | dict(self._sidecar_env)
            )

    def _start(self, name: str, command: list[str], env: dict[str, str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, env={"PATH": os.environ["PATH"]} | env, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def stop(self) -> None:
        """Kill and reap whatever still runs."""
        for process in self.processes.values():
            process.send_signal(signal.SIGKILL)
        for process in self.processes.values():
            process.wait()

    def check(self) -> None:
        """AssertionError with its log when a process has ended."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                raise AssertionError(f"{name} ended: {(self.folder / f'{name}.log').read_text()[-2000:]}")

    def pod(self, role: str) -> Pod:
        """This half in the shape in which the cluster's scenarios know pods."""
        ports = {"engine": self.engine[role], "sidecar": self.sidecar[role], "bootstrap": self.bootstrap}
        return {
            "metadata": {
                "name": f"{self.folder.parent.name}-{self.folder.name}-{role}",
                "labels": {"serving.dsv4.dev/role": role},
            },
            "status": {"podIP": "127.0.0.1"},
            "ports": ports,
        }

    def resident_bytes(self, name: str) -> int:
        """Resident memory of a process."""
        text = Path(f"/proc/{self.processes[name].pid}/status").read_text()
        return int(next(row for row in text.splitlines() if row.startswith("VmRSS")).split()[1]) * 1024

    def cpu_seconds(self, name: str) -> float:
        """Processor time that a process has used."""
        fields = Path(f"/proc/{self.processes[name].pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def local_pairs(folder: Path, count: int, **how: Any) -> Iterator[list[LocalPair]]:
    """Pairs whose engines serve; sidecars are not started yet. All processes are gone afterwards."""
    pairs = [LocalPair(folder / f"pair-{number}", **how) for number in range(count)]
    try:
        for pair in pairs:
            pair.start_engines()
        yield pairs
    finally:
        for pair in pairs:
            pair.stop()


def until(what: str, pairs: Sequence[LocalPair], probe: Any, timeout: float = 120) -> Any:
    """`wait_for` that ends early when a process has ended."""

    def checked() -> Any:
        for pair in pairs:
            pair.check()
        return probe()

    return wait_for(what, checked, timeout, interval=0.25)
