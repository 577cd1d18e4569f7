"""The canaries' metrics, scraped by a real Prometheus and asked for in its own language."""

from __future__ import annotations

import socket
import tempfile
import time
from pathlib import Path

import yaml
from rich.console import Console
from stage import Stage

from localcluster.prometheus import PrometheusServer

SCRAPE_SECONDS = 2
WATCH_SECONDS = 14
QUERIES = (
    ("does the canary pass (1 = the pod is Ready)", "dsv4_canary_ready"),
    ("probes by outcome", "sum by (pod, outcome) (dsv4_canary_probes_total)"),
    ("failures by signature; none is what one wants", "sum by (pod, signature) (dsv4_canary_failures_total) > 0"),
    ("seconds since the last success", "time() - dsv4_canary_last_success_timestamp_seconds"),
    (
        "mean probe time in seconds",
        "sum by (pod) (dsv4_canary_probe_seconds_sum) / sum by (pod) (dsv4_canary_probe_seconds_count)",
    ),
)


def scrape_config(stage: Stage, targets: Path) -> str:
    """Scrape every canary of the namespace. Debian's Prometheus lacks Kubernetes discovery, so targets are a file."""
    entries = []
    for pod in (stage.get("pods") or {}).get("items", []):
        containers = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
        ports = [port for container in containers for port in container.get("ports", []) if port["name"] == "canary"]
        labels = {"pod": pod["metadata"]["name"], "namespace": stage.namespace}
        entries += [{"targets": [f"{pod['status']['podIP']}:{p['containerPort']}"], "labels": labels} for p in ports]
    targets.write_text(yaml.safe_dump(entries))
    job = {"job_name": "dsv4-canary", "file_sd_configs": [{"files": [str(targets)]}]}
    settings = {"scrape_interval": f"{SCRAPE_SECONDS}s", "scrape_timeout": f"{SCRAPE_SECONDS}s"}
    return str(yaml.safe_dump({"global": settings, "scrape_configs": [job]}))


def show_metrics(stage: Stage, console: Console) -> None:
    """Scrape for a while and print one table per question."""
    if not stage.embedded:
        console.print(
            "Prometheus is not started beside your own cluster; scrape the pods' port named canary, or look at one:\n"
            f"  kubectl -n {stage.namespace} port-forward deploy/<name>-<fingerprint>-prefill 30002 & "
            "curl localhost:30002/metrics"
        )
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="dsv4-demo-") as folder:
        config = scrape_config(stage, Path(folder) / "targets.yml")
        with PrometheusServer(Path(folder), config, port) as prometheus:
            with console.status(f"scraping every {SCRAPE_SECONDS} s for {WATCH_SECONDS} s"):
                time.sleep(WATCH_SECONDS)
            for question, expression in QUERIES:
                console.print(f"[bold]{question}[/]\n  [dim]{expression}[/]", soft_wrap=True)
                results = prometheus.query(expression)
                for result in sorted(results, key=lambda r: sorted(r["metric"].items())):
                    labels = result["metric"]
                    detail = " ".join(v for k, v in labels.items() if k in ("outcome", "signature"))
                    value = f"{float(result['value'][1]):.4g}"
                    console.print(f"    {labels.get('pod', ''):45s} {detail:10s} {value:>8}", soft_wrap=True)
                if not results:
                    console.print("    none")
