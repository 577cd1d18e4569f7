"""A real Prometheus from Debian's package, unpacked into the cache: no system service is installed or started."""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode
from urllib.request import urlopen

from localcluster.errors import ClusterError
from localcluster.paths import cache_dir, file_lock, rename_into_place
from localcluster.report import say
from localcluster.waiting import wait_for

PACKAGE = "prometheus"


def program(name: str = "prometheus") -> Path:
    """Path of `prometheus` or `promtool`."""
    home = cache_dir("prometheus")
    final = home / "debian"
    with file_lock(home / "lock"):
        if not (final / "usr" / "bin" / "prometheus").exists():
            _unpack(home, final)
    return final / "usr" / "bin" / name


def _unpack(home: Path, final: Path) -> None:
    say(f"downloading Debian's package {PACKAGE}")
    part = Path(tempfile.mkdtemp(prefix=".part-", dir=home))
    try:
        part.chmod(0o755)
        package = _download(part)
        subprocess.run(["dpkg", "-x", str(package), str(part)], check=True)
        package.unlink()
        shutil.rmtree(final, ignore_errors=True)
        rename_into_place(part, final)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _download(folder: Path) -> Path:
    subprocess.run(["apt-get", "-qq", "update"], capture_output=True, check=False)  # old lists may do
    command = ["apt-get", "-qq", "download", PACKAGE]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}")
    return next(folder.glob("*.deb"))


class PrometheusServer:
    """Prometheus on loopback with the given configuration; `with` starts and stops it."""

    def __init__(self, folder: Path, config: str, port: int) -> None:
        self._folder = folder
        self._config = config
        self.url = f"http://127.0.0.1:{port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        self._folder.mkdir(parents=True, exist_ok=True)
        config = self._folder / "prometheus.yml"
        config.write_text(self._config)
        with (self._folder / "prometheus.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(program()),
                    f"--config.file={config}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    f"--web.listen-address={self.url.removeprefix('http://')}",
                    "--storage.tsdb.retention.time=2h",
                ],
                stdout=log,
                stderr=log,
            )
        wait_for("Prometheus to answer", self._ready, 30)

    def stop(self) -> None:
        """Stop it."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The result vector of an instant query: objects with `metric` and `value`."""
        with urlopen(f"{self.url}/api/v1/query?{urlencode({'query': expression})}", timeout=10) as answer:
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
            return result

    def _ready(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            tail = (self._folder / "prometheus.log").read_text()[-1500:]
            raise ClusterError(f"Prometheus ended at once:\n{tail}")
        with urlopen(f"{self.url}/-/ready", timeout=2) as answer:
            return bool(answer.status == 200)
