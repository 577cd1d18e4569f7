"""What the canary scenarios share: sidecars read, users' load on a pair, a real Prometheus with the shipped rules."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import math
import re
import secrets
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Self
from urllib.error import HTTPError
from urllib.request import urlopen

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from localcluster.prometheus import PrometheusServer
from operator_process import ROOT
from world import World, engine_url

RULES = ROOT / "manifests" / "monitoring" / "rules.yaml"
Pod = dict[str, Any]


def _table() -> ModuleType:
    """The simulator's own harness: its tool, its judgement of a reply, its tiers."""
    path = ROOT / "images" / "engine-sim" / "tools" / "table.py"
    spec = importlib.util.spec_from_file_location("engine_sim_table", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


table = _table()


# -- sidecars ----------------------------------------------------------------------------------------------------------


def sidecar_url(pod: Pod) -> str:
    """The canary's HTTP address of an engine pod."""
    usual = {"prefill": 30002, "decode": 30012}[pod["metadata"]["labels"]["serving.dsv4.dev/role"]]
    port = pod.get("ports", {}).get("sidecar", usual)
    return f"http://{pod['status']['podIP']}:{port}"


def report(pod: Pod) -> dict[str, Any]:
    """``/status`` of a pod's canary."""
    with urlopen(f"{sidecar_url(pod)}/status", timeout=5) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def ready_code(pod: Pod) -> int:
    """Status code of ``/readyz``, which kubelet asks."""
    try:
        with urlopen(f"{sidecar_url(pod)}/readyz", timeout=5) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


Samples = Counter[tuple[str, tuple[tuple[str, str], ...]]]


def samples(pod: Pod, url: str | None = None) -> Samples:
    """All series of a pod's canary, or of ``url``."""
    with urlopen(f"{url or sidecar_url(pod)}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found: Samples = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name, tuple(sorted(sample.labels.items()))] += sample.value
    return found


def total(found: Samples, name: str, **labels: str | set[str]) -> float:
    """Sum of a metric over the series whose labels are the given ones, or among them."""
    wanted = {key: {value} if isinstance(value, str) else value for key, value in labels.items()}
    return sum(
        value
        for (metric, pairs), value in found.items()
        if metric == name and all(dict(pairs).get(key) in allowed for key, allowed in wanted.items())
    )


def has(found: Samples, name: str) -> bool:
    """Whether there is any series of that name."""
    return any(metric == name for metric, _ in found)


def added(pods: list[Pod], before: dict[str, Samples] | None = None) -> Samples:
    """Series of all the pods' canaries together, less what they were ``before`` (from `by_name`)."""
    found: Samples = Counter()
    for name, now in by_name(pods).items():
        found.update(now)
        found.subtract((before or {}).get(name, {}))
    return found


def by_name(pods: list[Pod]) -> dict[str, Samples]:
    """`samples` of each pod, by its name."""
    return {pod["metadata"]["name"]: samples(pod) for pod in pods}


TIERS = ("cold", "device", "host")
CONCLUSIVE = {"pass", "fail"}


def line(found: Samples) -> str:
    """Wrong and all conclusive probes by cache tier, and how many wrong ones are corruption by themselves; for logs."""
    parts = []
    for tier in TIERS:
        asked = total(found, "dsv4_canary_probes_total", outcome=CONCLUSIVE, cache=tier)
        parts.append(f"{tier} {wrong(found, tier):.0f}/{asked:.0f} ({corrupted(found, tier):.0f} of class corruption)")
    return "  ".join(parts)


def wrong(found: Samples, tier: str) -> float:
    """Probes of a tier that failed."""
    return total(found, "dsv4_canary_probes_total", outcome="fail", cache=tier)


def findings(found: Samples) -> dict[str, float]:
    """Failures by signature, severity and tier, for the log of a test."""
    return {
        " ".join(value for _, value in pairs): count
        for (metric, pairs), count in found.items()
        if metric == "dsv4_canary_failures_total" and count
    }


def corrupted(found: Samples, tier: str) -> float:
    """Corruption-class findings of a tier."""
    return total(found, "dsv4_canary_failures_total", severity="corruption", cache=tier)


# -- users -------------------------------------------------------------------------------------------------------------


class UserLoad:
    """Users of a pair: ``workers`` threads of work that ask ``prompts`` long prompts in turn, again and again.

    The prompts are more than the pool holds, so each is evicted before it is asked again. The same body goes to both
    halves, as the router does it; it is not sent through the router, which has no workers when a canary has taken
    them out. ``pause``: seconds between two calls of a worker; ``patience``: after so many a user gives up. ``counts``:
    replies by (tier of the prefix, kind).
    """

    def __init__(
        self,
        prefills: list[Pod],
        decodes: list[Pod],
        *,
        workers: int = 2,
        prompts: int = 8,
        pause: float = 0.0,
        patience: float = 30.0,
    ) -> None:
        self._patience = patience
        self._pairs = [(p, d) for p in prefills for d in decodes]
        self._workers, self._prompts, self._pause = workers, prompts, pause
        self._words = {number: self._text(number) for number in range(prompts)}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self.counts: Counter[tuple[str, str]] = Counter()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def bad(self, tier: str) -> int:
        """Replies of a tier that were not what was asked for."""
        return sum(count for (where, kind), count in self.counts.items() if where == tier and kind in table.KINDS)

    def total(self, tier: str) -> int:
        """Replies of a tier."""
        return sum(count for (where, _), count in self.counts.items() if where == tier)

    def __str__(self) -> str:
        kinds = {kind: n for kind in (*table.KINDS, "error") if (n := sum(self.counts[t, kind] for t in (*TIERS, "-")))}
        return "  ".join(f"{tier} {self.bad(tier)}/{self.total(tier)}" for tier in TIERS) + f"  {kinds or ''}"

    @staticmethod
    def _text(number: int) -> str:
        return table._filler(number, 1, 1400)

    async def _run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=self._patience)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True), timeout=timeout) as client:
            await asyncio.gather(*(self._work(client, worker) for worker in range(self._workers)))

    async def _work(self, client: aiohttp.ClientSession, worker: int) -> None:
        turn = worker
        while not self._stop.is_set():
            prefill, decode = self._pairs[turn % len(self._pairs)]
            try:
                self.counts[await self._ask(client, prefill, decode, turn)] += 1
            except (aiohttp.ClientError, TimeoutError, ValueError, KeyError):
                self.counts["-", "error"] += 1
                await asyncio.sleep(0.2)
            await asyncio.sleep(self._pause)
            turn += self._workers

    async def _ask(self, client: aiohttp.ClientSession, prefill: Pod, decode: Pod, turn: int) -> tuple[str, str]:
        number = turn % self._prompts
        wanted = {"token": f"zk-{secrets.token_hex(4)}", "n": turn}
        ask = f'Call the tool probe_echo exactly once with token "{wanted["token"]}" and n {turn}.'
        body = {
            "model": "deepseek-v4",
            "messages": [
                {"role": "system", "content": f"User {number}. {table.SYSTEM}"},
                {"role": "user", "content": f"{self._words[number]}\n{ask}"},
            ],
            "tools": [table.TOOL],
            "temperature": 0,
            "max_tokens": 400,
            "return_cached_tokens_details": True,
            "bootstrap_host": prefill["status"]["podIP"],
            "bootstrap_port": prefill.get("ports", {}).get("bootstrap", 8998),
            "bootstrap_room": secrets.randbelow(2**62),
        }

        async def post(pod: Pod) -> Any:
            async with client.post(engine_url(pod) + "/v1/chat/completions", json=body) as response:
                response.raise_for_status()
                return await response.json()

        _, reply = await asyncio.gather(post(prefill), post(decode))
        return table.tier(reply), table.judge(reply["choices"][0]["message"], wanted)


# -- Prometheus --------------------------------------------------------------------------------------------------------

PORTS = {"prefill": {"engine": 30000, "canary": 30002}, "decode": {"engine": 30010, "canary": 30012}}
SCRAPE = """\
global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}
rule_files: [rules.yaml]
scrape_configs:
- job_name: dsv4-pods
  file_sd_configs: [{files: [targets.json], refresh_interval: 1s}]
"""


def hurried_rules(text: str, pace: float) -> str:
    """The shipped rules, asked every second, and every ``for`` divided by ``pace``. Nothing else is changed.

    A test whose canaries ask every 5 s instead of every 30 s has the pace 6.
    """
    units = {"s": 1, "m": 60, "h": 3600}

    def shorter(match: re.Match[str]) -> str:
        return f"{match[1]} {math.ceil(int(match[2]) * units[match[3]] / pace)}s"

    text = re.sub(r"^(\s*interval:) \S+$", r"\1 1s", text, flags=re.MULTILINE)
    return re.sub(r"^(\s*for:) (\d+)([smh])$", shorter, text, flags=re.MULTILINE)


class Alerts:
    """A Prometheus that scrapes the pods of one deployment with the labels that the shipped scrape config gives."""

    def __init__(self, server: PrometheusServer, folder: Path, world: World, name: str) -> None:
        self._server, self._folder, self._world, self._name = server, folder, world, name
        self.query = server.query

    def follow(self) -> None:
        """Scrape the pods that there are now."""
        groups = []
        for role, ports in PORTS.items():
            for pod in self._world.pods(self._name, role):
                labels = pod["metadata"]["labels"]
                common = {
                    "namespace": self._world.namespace,
                    "pod": pod["metadata"]["name"],
                    "deployment": self._name,
                    "fingerprint": labels["serving.dsv4.dev/fingerprint"],
                    "role": role,
                }
                for container, port in ports.items():
                    target = f"{pod['status']['podIP']}:{port}"
                    groups.append({"targets": [target], "labels": common | {"container": container}})
        fresh = self._folder / "targets.fresh"
        fresh.write_text(json.dumps(groups))
        fresh.replace(self._folder / "targets.json")

    def firing(self, name: str | None = None) -> list[dict[str, str]]:
        """Labels of the alerts that fire now."""
        chosen = f', alertname="{name}"' if name else ""
        return [row["metric"] for row in self.query(f'ALERTS{{alertstate="firing"{chosen}}}')]

    def ever(self) -> set[str]:
        """Names of all alerts that have fired since the start."""
        return {row["metric"]["alertname"] for row in self.query('last_over_time(ALERTS{alertstate="firing"}[1h])')}


@contextmanager
def alerts(folder: Path, port: int, world: World, name: str, pace: float) -> Iterator[Alerts]:
    """A running Prometheus with the shipped rules (`hurried_rules`)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rules.yaml").write_text(hurried_rules(RULES.read_text(), pace))
    (folder / "targets.json").write_text("[]")
    with PrometheusServer(folder, SCRAPE, port) as server:
        found = Alerts(server, folder, world, name)
        found.follow()
        yield found
