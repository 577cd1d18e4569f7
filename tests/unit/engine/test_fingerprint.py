"""The KV fingerprint: which fields are in it, and that every field of the spec has been thought about."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crd_cases import merged, minimal, nodes
from dsv4_operator.api.crd import object_schema
from dsv4_operator.api.v1alpha1 import DSV4DeploymentSpec, parse_deployment
from dsv4_operator.engine.fingerprint import changed_inputs, fingerprint_inputs, kv_fingerprint
from dsv4_operator.engine.releases import DEFAULT_RELEASE, Release

IMAGE = "x:0.5.23"
Patch = dict[str, Any]
EAGLE = {"engine": {"speculative": {"algorithm": "EAGLE"}}}
DSPARK = {"engine": {"speculative": {"algorithm": "DSPARK"}}}
WIDE: Patch = {"prefill": {"gpus": 8}, "decode": {"gpus": 8}}
CLAIM = {"model": {"source": {"huggingFace": None, "persistentVolumeClaim": {"claimName": "a", "path": "p"}}}}
HOST = {"model": {"source": {"huggingFace": None, "hostPath": {"path": "/a"}}}}
HUB: Patch = {}


def nested(path: str, value: Any) -> Patch:
    for part in reversed(path.split(".")):
        value = {part: value}
    return value  # type: ignore[no-any-return]


IN: dict[str, tuple[Patch, Any]] = {
    "model.id": (HUB, "other"),
    "model.source.persistentVolumeClaim.claimName": (CLAIM, "b"),
    "model.source.persistentVolumeClaim.path": (CLAIM, "q"),
    "model.source.hostPath.path": (HOST, "/b"),
    "model.source.huggingFace.repo": (HUB, "a/b"),
    "model.source.huggingFace.revision": (HUB, "abc"),
    "engine.contextLength": (HUB, 65536),
    "engine.speculative.algorithm": (HUB, "EAGLE"),
    "engine.speculative.numSteps": (EAGLE, 5),
    "engine.speculative.numDraftTokens": (EAGLE, 6),
    "engine.speculative.draftModelPath": (DSPARK, "/draft"),
    "engine.speculative.dsparkBlockSize": (DSPARK, 8),
    "engine.extraArgs": (HUB, ["--log-level", "debug"]),
    "engine.env": (HUB, [{"name": "A", "value": "b"}]),
    "indexK.dtype": (HUB, "FP4"),
    "network.checksum": (HUB, True),
    "prefill.gpus": (HUB, 8),
    "prefill.nodes": (HUB, 2),
    "prefill.parallelism.tensor": (HUB, 2),
    "prefill.parallelism.attentionData": (WIDE, 8),
    "prefill.parallelism.expert": (WIDE, 4),
    "decode.gpus": (HUB, 8),
    "decode.nodes": (HUB, 2),
    "decode.parallelism.tensor": (HUB, 2),
    "decode.parallelism.attentionData": (WIDE, 8),
    "decode.parallelism.expert": (WIDE, 4),
}
"""Fields that decide what a prefill's bytes mean: (where they may be set, another value)."""

_ROLE_OUT: dict[str, Any] = {
    "replicas": 3,
    "cpu": "8",
    "memory": "64Gi",
    "sharedMemory": "1Gi",
    "extraArgs": ["--log-level", "debug"],
    "env": [{"name": "A", "value": "b"}],
    "nodeSelector": {"a": "b"},
    "tolerations": [{"operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "high",
    "podTemplate": {"metadata": {"labels": {"a": "b"}}},
}

OUT: dict[str, tuple[Patch, Any]] = {
    "replicas": (HUB, 5),
    "engine.imagePullPolicy": (HUB, "Always"),
    "engine.imagePullSecrets": (HUB, [{"name": "a"}]),
    "engine.memFractionStatic": (HUB, "0.7"),
    "engine.maxRunningRequests": (HUB, 3),
    "engine.chunkedPrefillSize": (HUB, 4096),
    "engine.speculative.eagleTopk": (EAGLE, 1),
    "hiCache.enabled": (HUB, True),
    "hiCache.ratio": (HUB, "3"),
    "hiCache.writePolicy": (HUB, "WriteBack"),
    "hiCache.ioBackend": ({"hiCache": {"layout": "LayerFirst"}}, "Direct"),
    "hiCache.layout": (HUB, "LayerFirst"),
    "hiCache.onCorruption": (HUB, "Alert"),
    "overlapSchedule": (HUB, "Disabled"),
    **{f"{role}.{name}": (HUB, value) for role in ("prefill", "decode") for name, value in _ROLE_OUT.items()},
    "accelerator.architecture": (HUB, "SM100"),
    "accelerator.resourceName": (HUB, "nvidia.com/other"),
    "network.devices": (HUB, ["mlx5_0"]),
    "network.rdmaResource.name": (HUB, "rdma/hca"),
    "network.rdmaResource.count": ({"network": {"rdmaResource": {"name": "rdma/hca"}}}, 2),
    "network.ucxTransports": (HUB, ["rc", "cuda_ipc"]),
    "network.hostNetwork": (HUB, True),
    "network.hostIPC": (HUB, True),
    "network.computeDomain.mode": (HUB, "Create"),
    "network.computeDomain.name": ({"network": {"computeDomain": {"mode": "Existing", "name": "a"}}}, "b"),
    "model.source.huggingFace.tokenSecretRef.name": (
        {"model": {"source": {"huggingFace": {"tokenSecretRef": {"name": "a", "key": "k"}}}}},
        "b",
    ),
    "model.source.huggingFace.tokenSecretRef.key": (
        {"model": {"source": {"huggingFace": {"tokenSecretRef": {"name": "a", "key": "k"}}}}},
        "l",
    ),
    "model.source.huggingFace.cache.name": (HUB, "claim"),
    "router.enabled": (HUB, False),
    "router.replicas": (HUB, 2),
    "router.image": (HUB, "r:1"),
    "router.policy": (HUB, "Random"),
    "router.apiKeySecretRef.name": ({"router": {"apiKeySecretRef": {"name": "a", "key": "k"}}}, "b"),
    "router.apiKeySecretRef.key": ({"router": {"apiKeySecretRef": {"name": "a", "key": "k"}}}, "l"),
    "router.service.type": (HUB, "NodePort"),
    "router.service.port": (HUB, 8080),
    "router.service.annotations": (HUB, {"a": "b"}),
    "canary.enabled": (HUB, False),
    "canary.image": (HUB, "c:1"),
    "canary.intervalSeconds": (HUB, 5),
    "canary.timeoutSeconds": (HUB, 5),
    "canary.failureThreshold": (HUB, 5),
    "canary.promptTokens": (HUB, 3000),
    "canary.tokensPerMinute": (HUB, 9000),
    "canary.wedgeSeconds": (HUB, 99),
    "canary.minimumAvailable": (HUB, 2),
    "rollout.maxSurge": (HUB, 2),
    "rollout.maxUnavailable": (HUB, 2),
    "rollout.drainSeconds": (HUB, 5),
    "rollout.progressDeadlineSeconds": (HUB, 600),
    "rollout.autoRollback": (HUB, False),
    "rollout.soak.sessions": ({"rollout": {"soak": {}}}, 2),
    "rollout.soak.rounds": ({"rollout": {"soak": {}}}, 2),
    "rollout.soak.maxCorruptionRate": ({"rollout": {"soak": {}}}, "0.5"),
    "recovery.restartBudget.count": (HUB, 1),
    "recovery.restartBudget.windowSeconds": (HUB, 60),
    "policy.allow": (HUB, [{"rule": "a", "reason": "because of this"}]),
    "paused": (HUB, True),
}
"""Fields that leave the bytes' meaning alone: (where they may be set, another value)."""

ELSEWHERE = {
    "engine.image": "the resolved image is an argument",
    "engine.release": "the resolved release is an argument",
    "network.transport": "one value",
    "network.backend": "one value; its name is in the fingerprint for the day of a second",
}


def spec_of(*patches: Patch) -> DSV4DeploymentSpec:
    found = minimal()
    for patch in patches:
        found = merged(found, {"spec": patch})
    return parse_deployment(found).spec


def print_of(spec: DSV4DeploymentSpec) -> str:
    return kv_fingerprint(spec, DEFAULT_RELEASE, IMAGE)


def leaves() -> set[str]:
    """Every field of the spec that holds a value; a list counts as one."""
    found = set()
    for path, node in nodes(object_schema().schema):
        if path.startswith("spec.") and "[]" not in path and "{}" not in path and "properties" not in node:
            found.add(path.removeprefix("spec."))
    return found


def test_every_field_is_classified() -> None:
    """A new field fails here until somebody has decided whether it changes the meaning of KV."""
    assert leaves() == IN.keys() | OUT.keys() | ELSEWHERE.keys()
    assert not IN.keys() & OUT.keys()


@pytest.mark.parametrize("path", IN)
def test_field_changes_it(path: str) -> None:
    base, value = IN[path]
    assert print_of(spec_of(base, nested(path, value))) != print_of(spec_of(base))


@pytest.mark.parametrize("path", OUT)
def test_field_leaves_it(path: str) -> None:
    base, value = OUT[path]
    assert print_of(spec_of(base, nested(path, value))) == print_of(spec_of(base))


OUT_OF_HUB = [path for path, (base, _) in OUT.items() if not base and path != "engine.speculative.eagleTopk"]
IN_OF_HUB = [path for path, (base, _) in IN.items() if not base and not path.startswith(("prefill", "decode"))]


@settings(max_examples=60, deadline=None)
@given(st.sets(st.sampled_from(OUT_OF_HUB), max_size=8), st.sets(st.sampled_from(IN_OF_HUB), max_size=4))
def test_any_mixture(outside: set[str], inside: set[str]) -> None:
    base = spec_of(*(nested(path, IN[path][1]) for path in sorted(inside)))
    both = spec_of(*(nested(path, {**IN, **OUT}[path][1]) for path in sorted(inside | outside)))
    assert print_of(both) == print_of(base)
    assert (print_of(base) != print_of(spec_of())) is bool(inside)
    assert changed_inputs(fingerprint_inputs(spec_of(), DEFAULT_RELEASE, IMAGE),
                          fingerprint_inputs(base, DEFAULT_RELEASE, IMAGE)) == [
        path for path in fingerprint_inputs(base, DEFAULT_RELEASE, IMAGE)
        if any(f"spec.{name}".startswith(path) for name in inside)
    ]  # fmt: skip


def test_image_and_release() -> None:
    spec = spec_of()
    assert kv_fingerprint(spec, DEFAULT_RELEASE, "x:1") != kv_fingerprint(spec, DEFAULT_RELEASE, "x:2")
    assert kv_fingerprint(spec, DEFAULT_RELEASE, IMAGE) != kv_fingerprint(spec, Release((0, 5, 22)), IMAGE)


@pytest.mark.parametrize(
    ("unset", "written"),
    [
        (
            EAGLE,
            {"engine": {"speculative": {"algorithm": "EAGLE", "numSteps": 3, "eagleTopk": 1, "numDraftTokens": 4}}},
        ),
        (HUB, {"prefill": {"parallelism": {"tensor": 4}}}),
        (HUB, {"model": {"source": {"huggingFace": {"revision": "main"}}}}),
        (HUB, {"indexK": {"dtype": "FP8"}}),
    ],
)
def test_writing_down_a_default_is_no_change(unset: Patch, written: Patch) -> None:
    assert print_of(spec_of(written)) == print_of(spec_of(unset))


def test_kind_of_source() -> None:
    assert len({print_of(spec_of(base)) for base in (HUB, CLAIM, HOST)}) == 3


def test_value() -> None:
    """Pinned: another value here means that an upgrade of the operator restarts every engine."""
    assert re.fullmatch(r"[0-9a-f]{8}", print_of(spec_of()))
    assert print_of(spec_of()) == "54096e19"
