"""A running pair under load, all that Prometheus scrapes around it, and a real Prometheus with the shipped rules."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

from monitoring.files import MANIFESTS

from canary_lab import UserLoad
from dsv4_operator.runtime.metrics import CONTENT_TYPE, OperatorMetrics
from dsv4_operator.runtime.queue import QueueStats
from local_pairs import ROLES, LocalPair, local_pairs
from localcluster.ports import free_port
from localcluster.prometheus import PrometheusServer
from localcluster.waiting import wait_for

ROOT = Path(__file__).resolve().parents[3]
SCRAPE = """\
global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}
rule_files: [rules.yaml]
scrape_configs:
- job_name: dsv4-pods
  file_sd_configs: [{files: [pods.json]}]
- job_name: dsv4-operator
  honor_labels: true
  file_sd_configs: [{files: [operator.json]}]
- job_name: dsv4-soak
  file_sd_configs: [{files: [soak.json]}]
"""
GUARD = {
    "DSV4_SIM_GUARD": "1",
    "SGLANG_PLUGINS": "dsv4_guard",
    "DSV4_INDEX_K_DTYPE": "bf16",
    "DSV4_SIM_POOL_PAGES": "96",
    "DSV4_SIM_HOST_POOL_PAGES": "512",
    "DSV4_SIM_HOST_BANDWIDTH_MBPS": "64",
    "DSV4_SIM_LAYER_MS": "4",
}


class Asked:
    """A Prometheus, asked in PromQL; errors are AssertionErrors that quote the query."""

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The result of an instant query."""
        found = self.get("query", query=expression)["result"]
        assert isinstance(found, list), expression  # no bare scalar: panels want series
        return found

    def has_data(self, expression: str) -> bool:
        """Whether some value comes that is a number."""
        return any(row["value"][1] != "NaN" for row in self.query(expression))

    def get(self, path: str, **arguments: str) -> Any:
        """The data of an API call."""
        try:
            with urlopen(f"{self.url}/api/v1/{path}?{urlencode(arguments)}", timeout=30) as answer:
                return json.load(answer)["data"]
        except HTTPError as error:
            raise AssertionError(f"{arguments}: {error.read().decode()}") from error


def operator_metrics() -> OperatorMetrics:
    """The operator's registry after some work on one object."""
    metrics = OperatorMetrics("0")
    metrics.watch_queue(lambda: QueueStats(1, 0, 1, 0.2, 0.1, 0.0, 0.0))
    metrics.watch_cache(lambda: 12)
    metrics.set_leader(True)
    metrics.set_conditions("llm", "demo", [("Ready", "True"), ("CanaryPassing", "True"), ("Degraded", "False")])
    metrics.set_findings("llm", "demo", [("early-send", "Set")])
    metrics.set_generations("llm", "demo", 1)
    metrics.set_router_drift("llm", "demo", 0)
    return metrics


@contextmanager
def served(metrics: OperatorMetrics) -> Iterator[int]:
    """The operator's series on a port, with a pass and a call more at each scrape."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            metrics.reconcile_done("ok", 0.02)
            metrics.api_call("get", "Pod", "200", 0.01)
            body = metrics.exposition()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def soaking(folder: Path) -> Iterator[int]:
    """A soak that goes on and on against a simulated engine; the port of its metrics."""
    engine_port, port = free_port(), free_port()
    flags = ["--model-path", "/models/v4", "--served-model-name", "deepseek-v4", "--enable-cache-report"]
    flags += ["--tool-call-parser", "deepseekv4", "--reasoning-parser", "deepseek-v4"]
    engine = [sys.executable, "-m", "sglang.launch_server", "--host", "127.0.0.1", "--port", str(engine_port), *flags]
    soak = [sys.executable, "-m", "dsv4_canary.soak", "run", "--endpoint", f"http://127.0.0.1:{engine_port}"]
    soak += ["--tag", "shown", "--sessions", "400", "--rounds", "4", "--ctx", "40", "--shared-ctx", "400"]
    soak += ["--concurrency", "2", "--baseline", "2", "--metrics-port", str(port), "--out", str(folder / "soak")]
    path = f"{ROOT / 'operator'}:{ROOT / 'images/engine-sim/src'}"
    env = {"PYTHONPATH": path, "DSV4_SIM_STARTUP_SECONDS": "0", "DSV4_SIM_HEALTH_SECONDS": "0"}
    env["DSV4_SIM_TOKENS_PER_SECOND"] = "200"
    running = []
    try:
        for name, command in (("engine", engine), ("soak", soak)):
            with (folder / f"soak-{name}.log").open("ab") as log:
                running.append(subprocess.Popen(command, env=env, stdout=log, stderr=log, cwd=folder))
            if name == "engine":
                _wait_ready(f"http://127.0.0.1:{engine_port}/ready")
        yield port
    finally:
        for process in running:
            process.kill()
            process.wait()


def _wait_ready(url: str) -> None:
    def ready() -> bool:
        with urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)

    wait_for(f"{url} to answer", ready, 60)


def targets(pair: LocalPair) -> list[dict[str, Any]]:
    """What the PodMonitor of engines finds, with the labels that it gives."""
    found = []
    for role in ROLES:
        common = {
            "namespace": "llm",
            "deployment": "demo",
            "fingerprint": "abcdef",
            "role": role,
            "pod": f"demo-abcdef-{role}-0",
        }
        for container, port in (("engine", pair.engine[role]), ("canary", pair.sidecar[role])):
            found.append({"targets": [f"127.0.0.1:{port}"], "labels": common | {"container": container}})
    return found


@contextmanager
def running(folder: Path) -> Iterator[Asked]:
    """Everything, up and scraped."""
    with ExitStack() as stack:
        how: dict[str, Any] = {
            "env": GUARD,
            "prefill_flags": ("--enable-hierarchical-cache",),
            "sidecar_env": {"DSV4_CANARY_REQUIRE_GUARD": "bf16"},
        }
        (pair,) = stack.enter_context(local_pairs(folder, 1, **how))
        pair.start_sidecars()
        pods = targets(pair)
        (folder / "pods.json").write_text(json.dumps(pods))
        for name, port in (
            ("operator", stack.enter_context(served(operator_metrics()))),
            ("soak", stack.enter_context(soaking(folder))),
        ):
            (folder / f"{name}.json").write_text(json.dumps([{"targets": [f"127.0.0.1:{port}"]}]))
        rules = (MANIFESTS / "rules.yaml").read_text()
        (folder / "rules.yaml").write_text(re.sub(r"^(\s*interval:) \S+$", r"\1 1s", rules, flags=re.MULTILINE))
        server = stack.enter_context(PrometheusServer(folder / "prometheus", _placed(folder), free_port()))
        stack.enter_context(UserLoad([pair.pod("prefill")], [pair.pod("decode")], workers=2, prompts=8))
        yield Asked(server.url)


def _placed(folder: Path) -> str:
    return re.sub(r"\[(\w+\.(?:yaml|json))\]", rf"[{folder}/\1]", SCRAPE)
