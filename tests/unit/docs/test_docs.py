"""The documents against what they speak of: links, commands, names, figures and tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from crd_cases import merged, minimal
from dsv4_canary.metrics import Metrics
from dsv4_canary.model import Reason as CanaryReason
from dsv4_canary.signatures import CATALOGUE
from dsv4_operator.api.crd import object_schema
from dsv4_operator.api.v1alpha1 import parse_deployment
from dsv4_operator.api.v1alpha1.conditions import ConditionType, Reason
from dsv4_operator.api.v1alpha1.operations import CanarySpec
from dsv4_operator.desired.children import build_children
from dsv4_operator.desired.context import DesiredContext
from dsv4_operator.engine.images import ImageDefaults, resolve_images
from dsv4_operator.engine.releases import DEFAULT_RELEASE
from dsv4_operator.policy import Action
from dsv4_operator.runtime.metrics import OperatorMetrics
from dsv4_operator.runtime.queue import QueueStats

ROOT = Path(__file__).resolve().parents[3]
GENERATED = {"docs/api.md", "docs/conditions.md"}
PAGES = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "docs/**/*.md", "charts/*/README.md", "images/*/README.md", "tests/*/README.md")
    for path in ROOT.glob(pattern)
)
OURS = [page for page in PAGES if page == "README.md" or (page.startswith("docs/") and page not in GENERATED)]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
OTHERS = {"CelRule", "InPlace", "NewGeneration", "ServerArgs"}
"""Names in code spans that are neither constants of the API nor of the canary."""


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def prose(page: str) -> str:
    return FENCE.sub("", text_of(page))


def code(page: str) -> Iterator[str]:
    """What stands in fences and in code spans."""
    yield from (found[2] for found in FENCE.finditer(text_of(page)))
    yield from (found[1] for found in SPAN.finditer(prose(page)))


def slug(heading: str) -> str:
    """The anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(path: Path) -> set[str]:
    return {slug(line.lstrip("#")) for line in FENCE.sub("", path.read_text()).splitlines() if line.startswith("#")}


def tables(page: str, header: str) -> list[list[list[str]]]:
    """Rows of cells of every table whose header line starts so."""
    found = []
    for part in re.split(rf"^(?={re.escape(header)})", text_of(page), flags=re.MULTILINE)[1:]:
        lines = part.split("\n\n", 1)[0].splitlines()[2:]
        found.append([[cell.strip() for cell in line.strip("|").split("|")] for line in lines])
    return found


def table(page: str, header: str) -> list[list[str]]:
    """Rows of the only such table."""
    (found,) = tables(page, header)
    return found


def names(cell: str) -> list[str]:
    return SPAN.findall(cell)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in LINK.findall(prose(page)):
        if re.match(r"https?:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (ROOT / page).parent / path if path else ROOT / page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


def test_every_page_is_linked() -> None:
    linked = {
        ((ROOT / page).parent / target.partition("#")[0]).resolve()
        for page in OURS
        for target in LINK.findall(prose(page))
    }
    missing = [page for page in PAGES if page.startswith("docs/") and (ROOT / page).resolve() not in linked]
    assert missing == []


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_exist(page: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), flags=re.MULTILINE))
    for piece in code(page):
        for target in re.findall(r"\bmake ([a-z][a-z-]*)", piece):
            assert target in targets, target


def test_every_make_target_that_help_lists_is_explained() -> None:
    listed = re.findall(r"^([a-z-]+):.*## ", text_of("Makefile"), flags=re.MULTILINE)
    explained = " ".join(name for row in table("docs/development.md", "| target") for name in names(row[0]))
    assert [target for target in listed if target != "help" and f"make {target}" not in explained] == []


def enumerations(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("enum"), list):
            yield from map(str, node["enum"])
        for value in node.values():
            yield from enumerations(value)


@pytest.mark.parametrize("page", OURS)
def test_constants_exist(page: str) -> None:
    """Reasons and condition types foremost: whoever greps for one of the documents must find it."""
    known = {*Reason, *ConditionType, *CanaryReason, *Action, *enumerations(object_schema().schema), *OTHERS}
    for span in SPAN.findall(prose(page)):
        if re.fullmatch(r"[A-Z][a-z]+(?:[A-Z][a-z]+)+", span):
            assert span in known, span


@pytest.mark.parametrize("page", PAGES)
def test_samples_parse(page: str) -> None:
    for language, block in FENCE.findall(text_of(page)):
        if language != "yaml":
            continue
        for document in yaml.safe_load_all(block):
            if document.get("kind") == "DSV4Deployment":
                parse_deployment(document)


def test_the_readme_shows_the_minimal_sample() -> None:
    blocks = [yaml.safe_load(block) for language, block in FENCE.findall(text_of("README.md")) if language == "yaml"]
    assert minimal("minimal") in blocks


def operator_metrics() -> set[str]:
    metrics = OperatorMetrics("0")
    metrics.watch_queue(lambda: QueueStats(0, 0, 0, 0.0, 0.0, 0.0, 0.0))
    metrics.watch_cache(lambda: 0)
    return {f"{m.name}_total" if m.type == "counter" else m.name for m in metrics.registry.collect()}


def canary_metrics() -> set[str]:
    found = Metrics("prefill", "f").registry.collect()
    return {f"{m.name}_total" if m.type == "counter" else m.name for m in found if m.name.startswith("dsv4_")}


@pytest.mark.parametrize("page", PAGES)
def test_metrics_exist(page: str) -> None:
    known = operator_metrics() | canary_metrics()
    for piece in code(page):
        for name in re.findall(r"\bdsv4_(?:operator|canary)_[a-z_]+", piece):
            assert re.sub(r"_(bucket|sum|count)$", "", name) in known, name


def test_every_metric_is_described() -> None:
    rows = [row for found in tables("docs/observability.md", "| metric | labels | meaning |") for row in found]
    assert sorted(name for row in rows for name in names(row[0])) == sorted(operator_metrics() | canary_metrics())


def test_signatures_are_listed_as_they_are() -> None:
    rows = [(names(row[0])[0], row[1], row[2]) for row in table("docs/canary.md", "| id | severity")]
    assert rows == [(s.id, s.severity.value, s.meaning) for s in CATALOGUE.values()]


def test_canary_reasons_are_listed() -> None:
    assert [names(row[0])[0] for row in table("docs/canary.md", "| reason")] == [
        reason.value for reason in CanaryReason
    ]


def test_canary_defaults_are_the_schema_s() -> None:
    defaults = CanarySpec().model_dump(by_alias=True)
    for row in table("docs/canary.md", "| field"):
        assert defaults[names(row[0])[0]] == int(row[1])


# -- the table of what a change rolls

EXAMPLES: dict[str, Any] = {
    "replicas": 2,
    "model.id": "other",
    "model.source.huggingFace.repo": "acme/other",
    "model.source.huggingFace.revision": "abc",
    "model.source.huggingFace.tokenSecretRef": {"name": "token", "key": "t"},
    "model.source.huggingFace.cache": {"name": "claim"},
    "engine.image": "registry.example.com/other:0.5.23",
    "engine.contextLength": 65536,
    "engine.speculative.algorithm": "EAGLE",
    "engine.extraArgs": ["--some-flag"],
    "engine.env": [{"name": "A", "value": "b"}],
    "engine.memFractionStatic": "0.85",
    "engine.maxRunningRequests": 8,
    "engine.chunkedPrefillSize": 4096,
    "engine.imagePullPolicy": "Always",
    "engine.imagePullSecrets": [{"name": "pull"}],
    "indexK.dtype": "FP4",
    "hiCache.enabled": False,
    "hiCache.ratio": "3",
    "hiCache.writePolicy": "WriteBack",
    "hiCache.layout": "LayerFirst",
    "overlapSchedule": "Disabled",
    "prefill.replicas": 2,
    "prefill.gpus": 8,
    "prefill.nodes": 2,
    "prefill.parallelism.attentionData": 2,
    "prefill.cpu": "8",
    "prefill.memory": "8Gi",
    "prefill.sharedMemory": "8Gi",
    "prefill.extraArgs": ["--some-flag"],
    "prefill.env": [{"name": "A", "value": "b"}],
    "prefill.podTemplate": {"metadata": {"annotations": {"a": "b"}}},
    "prefill.nodeSelector": {"a": "b"},
    "prefill.tolerations": [{"key": "a", "operator": "Exists"}],
    "prefill.affinity": {"podAntiAffinity": {}},
    "prefill.priorityClassName": "high",
    "decode.memory": "8Gi",
    "decode.env": [{"name": "A", "value": "b"}],
    "accelerator.architecture": "SM100",
    "accelerator.resourceName": "example.com/gpu",
    "network.checksum": True,
    "network.devices": ["mlx5_0"],
    "network.rdmaResource": {"name": "rdma/hca"},
    "network.ucxTransports": ["tcp"],
    "network.hostNetwork": True,
    "network.hostIPC": True,
    "router.image": "registry.example.com/router:2",
    "router.policy": "Random",
    "router.apiKeySecretRef": {"name": "key", "key": "k"},
    "router.replicas": 2,
    "router.service.port": 81,
    "router.service.type": "NodePort",
    "canary.intervalSeconds": 10,
    "canary.timeoutSeconds": 10,
    "canary.failureThreshold": 2,
    "canary.promptTokens": 3000,
    "canary.tokensPerMinute": 9000,
    "canary.wedgeSeconds": 90,
    "canary.image": "registry.example.com/canary:2",
    "canary.enabled": False,
    "rollout.drainSeconds": 10,
    "rollout.progressDeadlineSeconds": 600,
    "rollout.maxSurge": 2,
    "rollout.maxUnavailable": 1,
    "recovery.restartBudget.count": 1,
    "policy.allow": [{"rule": "some-rule", "reason": "because of something"}],
}
BASE = {"hiCache": {"enabled": True}}
CHANGES = table("docs/concepts.md", "| change of")


def children(spec: dict[str, Any]) -> tuple[str, dict[tuple[str, str], dict[str, Any]]]:
    deployment = parse_deployment(merged(minimal(), {"spec": spec}))
    images = resolve_images(deployment.spec, ImageDefaults(None, "canary:1", "router:1"))
    ctx = DesiredContext("pair", "ns", "uid", deployment.spec, images, DEFAULT_RELEASE)
    return ctx.fingerprint, {(child["kind"], child["metadata"]["name"]): child for child in build_children(ctx)}


def effect(path: str) -> str:
    patch: Any = EXAMPLES[path]
    for part in reversed(path.split(".")):
        patch = {part: patch}
    old_fingerprint, old = children(BASE)
    new_fingerprint, new = children(merged(BASE, patch))
    if old_fingerprint != new_fingerprint:
        return "new generation"
    workloads = {key: (old[key]["spec"], new[key]["spec"]) for key in old if key[0] == "Deployment"}
    rolled = [
        name.rpartition("-")[2] for (_, name), (was, now) in workloads.items() if was["template"] != now["template"]
    ]
    if rolled:
        listed = sorted(rolled, key=["prefill", "decode", "router"].index)
        words = f"{', '.join(listed[:-1])} and {listed[-1]}" if len(listed) > 1 else listed[0]
        return f"{words} roll" if len(listed) > 1 else f"{words} rolls"
    if any(was["replicas"] != now["replicas"] for was, now in workloads.values()):
        return "pods are added or removed"
    key = ("ConfigMap", "pair-canary")
    return "settings are read again" if old[key] != new[key] else "nothing restarts"


@pytest.mark.parametrize(("path", "said"), [(path, row[1]) for row in CHANGES for path in names(row[0])])
def test_what_a_change_rolls_is_true(path: str, said: str) -> None:
    assert effect(path) == said


# -- tone

FORBIDDEN = re.compile(
    r"/[w]ork/|\b(?:this|our|last) session\b|\bsub-?agents?\b|\bworkplace\b|\bTODO\b|\bFIXME\b", re.IGNORECASE
)


@pytest.mark.parametrize("page", OURS)
def test_pages_speak_of_the_product_alone(page: str) -> None:
    found = FORBIDDEN.search(text_of(page))
    assert found is None, text_of(page)[max(0, found.start() - 40) : found.end() + 40]
