"""The operator as a process of its own, against a real API server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

from localcluster.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]
IMAGES = {
    "engine": "localhost/dsv4/engine-sim:0.5.23",
    "canary": "localhost/dsv4/canary:dev",
    "router": "localhost/dsv4/router:dev",
}


class OperatorProcess:
    """`python -m dsv4_operator` with a kubeconfig; its log is kept in `folder`."""

    def __init__(self, kubeconfig: Path, folder: Path, port: int, *arguments: str) -> None:
        self._folder = folder
        self._port = port
        self._arguments = [
            f"--kubeconfig={kubeconfig}",
            f"--listen-port={port}",
            "--listen-host=127.0.0.1",
            "--log-format=text",
            *(f"--{name}-image={image}" for name, image in IMAGES.items()),
            *arguments,
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    @property
    def log(self) -> str:
        """Everything that it has logged in all its starts."""
        path = self._folder / "operator.log"
        return path.read_text() if path.exists() else ""

    def start(self) -> None:
        """Start it; returns when its HTTP endpoint answers."""
        name = f"operator-{self._port}-{self.starts}"
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "operator"), "POD_NAME": name}
        self.starts += 1
        with (self._folder / "operator.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dsv4_operator", *self._arguments],
                stdout=log,
                stderr=log,
                env=environment,
            )
        wait_for("the operator to answer", lambda: self.get("/healthz").startswith("ok"), 60)

    def get(self, path: str) -> str:
        """The text at a path of its HTTP endpoint."""
        with urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=5) as answer:
            return str(answer.read().decode())

    def metric(self, name_and_labels: str) -> float | None:
        """The value of one series, None when there is none."""
        for line in self.get("/metrics").splitlines():
            if line.startswith(f"{name_and_labels} "):
                return float(line.rpartition(" ")[2])
        return None

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal it and wait for its end; the exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        try:
            return process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def kill(self) -> None:
        """SIGKILL, as a node that dies does."""
        self.stop(signal.SIGKILL)
