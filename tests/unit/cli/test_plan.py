"""plan: what each kind of change does to each role, and the fields that cause it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Ctl = Callable[..., Any]
Write = Callable[..., Path]

NONE = ("None", [])


def changed(spec: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    result = copy.deepcopy(spec)
    for path, value in changes.items():
        *parents, name = path.split(".")[1:]
        holder = result
        for parent in parents:
            holder = holder.setdefault(parent, {})
        if value is None:
            holder.pop(name, None)
        else:
            holder[name] = value
    return result


IN_PLACE = {
    "hicache-on": ({"spec.hiCache.enabled": True}, ["prefill"]),
    "prefill-memory": ({"spec.prefill.memory": "700Gi"}, ["prefill"]),
    "decode-env": ({"spec.decode.env": [{"name": "NCCL_DEBUG", "value": "WARN"}]}, ["decode"]),
    "decode-args": ({"spec.decode.extraArgs": ["--stream-interval", "4"]}, ["decode"]),
    "overlap": ({"spec.overlapSchedule": "Disabled"}, ["prefill", "decode"]),
    "node-selector": ({"spec.prefill.nodeSelector": {"zone": "a"}}, ["prefill"]),
    "canary-image": ({"spec.canary.image": "registry.example.com/canary:2"}, ["prefill", "decode"]),
    "drain": ({"spec.rollout.drainSeconds": 60}, ["prefill", "decode"]),
    "chunk": ({"spec.engine.chunkedPrefillSize": 8192}, ["prefill"]),
    "devices": ({"spec.network.devices": ["mlx5_0"]}, ["prefill", "decode"]),
    "tolerations": ({"spec.decode.tolerations": [{"operator": "Exists"}]}, ["decode"]),
}
NEW_GENERATION = {
    "index-k": {"spec.indexK.dtype": "FP4"},
    "image": {"spec.engine.image": "registry.example.com/sglang-dsv4:0.5.23-2"},
    "release": {"spec.engine.image": "registry.example.com/sglang-dsv4:0.5.22"},
    "model-id": {"spec.model.id": "other"},
    "revision": {"spec.model.source.huggingFace.revision": "v2"},
    "speculation": {"spec.engine.speculative.algorithm": "EAGLE"},
    "context": {"spec.engine.contextLength": 65536},
    "engine-args": {"spec.engine.extraArgs": ["--stream-interval", "4"]},
    "expert": {"spec.decode.parallelism.expert": 4},
}
NOTHING = {
    "same": {},
    "written-default": {"spec.hiCache.enabled": False, "spec.replicas": 1, "spec.indexK.dtype": "FP8"},
    "canary-interval": {"spec.canary.intervalSeconds": 10},
    "cache-while-off": {"spec.hiCache.ratio": "3"},
    "surge": {"spec.rollout.maxUnavailable": 1},
    "service": {"spec.router.service.type": "NodePort"},
    "router-image": {"spec.router.image": "registry.example.com/router:2"},
    "scale": {"spec.replicas": 3},
    "scale-decode": {"spec.decode.replicas": 2},
}


def plan(ctl: Ctl, write: Write, old: Any, new: Any, *words: str) -> Any:
    return ctl("plan", "-f", write(new), "--from", write(old, "old"), "-o", "json", *words)


def roles(done: Any) -> dict[str, tuple[str, list[str]]]:
    assert set(done.json) == {"roles", "steps"}
    return {role: (entry["action"], entry["because"]) for role, entry in done.json["roles"].items()}


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(ctl: Ctl, write: Write, spec: Any, name: str) -> None:
    changes, rolled = IN_PLACE[name]
    done = plan(ctl, write, spec, changed(spec, changes))
    assert done.code == 0
    expected = ("InPlace", list(changes))
    assert roles(done) == {role: expected if role in rolled else NONE for role in ("prefill", "decode")}
    for role in rolled:
        assert any(step.startswith(f"roll {role} ") for step in done.json["steps"])


@pytest.mark.parametrize("name", NEW_GENERATION)
def test_new_generation(ctl: Ctl, write: Write, spec: Any, name: str) -> None:
    changes = NEW_GENERATION[name]
    done = plan(ctl, write, spec, changed(spec, changes))
    assert done.code == 0, done.err
    expected = ("NewGeneration", list(changes))
    assert roles(done) == {"prefill": expected, "decode": expected}
    steps = done.json["steps"]
    assert steps[0].startswith("create generation ")
    assert any(step.startswith("point Service pair at ") for step in steps)
    assert any(step.startswith("drain generation ") for step in steps)


@pytest.mark.parametrize("name", NOTHING)
def test_nothing_is_replaced(ctl: Ctl, write: Write, spec: Any, name: str) -> None:
    done = plan(ctl, write, spec, changed(spec, NOTHING[name]))
    assert done.code == 0
    assert roles(done) == {"prefill": NONE, "decode": NONE}


def test_steps_of_what_replaces_no_engine(ctl: Ctl, write: Write, spec: Any) -> None:
    def steps(changes: dict[str, Any]) -> list[str]:
        found: list[str] = plan(ctl, write, spec, changed(spec, changes)).json["steps"]
        return found

    assert steps({}) == []
    assert steps({"spec.canary.intervalSeconds": 10}) == [
        "update ConfigMap pair-canary, which running canaries read again"
    ]
    assert steps({"spec.router.service.type": "NodePort"}) == ["update Service pair"]
    assert steps({"spec.replicas": 3})[:2] == [
        "scale prefill from 1 to 3 engines; no running pod is replaced",
        "scale decode from 1 to 3 engines; no running pod is replaced",
    ]
    (router,) = steps({"spec.router.image": "registry.example.com/router:2"})
    assert router.startswith("update Deployment pair-")
    assert router.endswith("-router, which rolls the router pods")
    assert any(step.startswith("delete Service pair") for step in steps({"spec.router.enabled": False}))


def test_a_paused_object_changes_nothing(ctl: Ctl, write: Write, spec: Any) -> None:
    for field in ("spec.hiCache.enabled", "spec.indexK.dtype"):
        value = {"spec.hiCache.enabled": True, "spec.indexK.dtype": "FP4"}[field]
        done = plan(ctl, write, spec, changed(spec, {"spec.paused": True, field: value}))
        assert done.code == 0
        assert roles(done) == {"prefill": NONE, "decode": NONE}
        assert done.json["steps"] == ["nothing is changed while spec.paused is true"]


def test_steps_of_a_new_generation(ctl: Ctl, write: Write, spec: Any) -> None:
    done = plan(ctl, write, spec, changed(spec, {"spec.indexK.dtype": "FP4"}))
    steps = done.json["steps"]
    new, old = (steps[0].split()[index].rstrip(":") for index in (2, 4))
    assert new != old
    assert steps == [
        f"create generation {new} beside {old}: 1 prefill and 1 decode, 1 router",
        f"wait until the canary of every engine of {new} passes",
        f"point Service pair at {new}",
        f"drain generation {old}: remove its router, then its engines",
    ]


def test_several_causes_and_an_innocent_bystander(ctl: Ctl, write: Write, spec: Any) -> None:
    new = changed(spec, {"spec.hiCache.enabled": True, "spec.hiCache.ratio": "3", "spec.decode.memory": "64Gi"})
    done = plan(ctl, write, spec, new)
    assert roles(done)["decode"] == ("InPlace", ["spec.decode.memory"])
    action, because = roles(done)["prefill"]
    assert action == "InPlace"
    assert "spec.hiCache.enabled" in because
    assert "spec.decode.memory" not in because
    new = changed(spec, {"spec.indexK.dtype": "FP4", "spec.hiCache.enabled": True})
    assert roles(plan(ctl, write, spec, new))["prefill"] == ("NewGeneration", ["spec.indexK.dtype"])


def test_fields_that_are_valid_only_together(ctl: Ctl, write: Write, spec: Any) -> None:
    new = changed(
        spec, {"spec.model.source.huggingFace": None, "spec.model.source.persistentVolumeClaim": {"claimName": "w"}}
    )
    because = roles(plan(ctl, write, spec, new))["prefill"][1]
    assert because == ["spec.model.source.huggingFace", "spec.model.source.persistentVolumeClaim"]


def test_first_apply(ctl: Ctl, write: Write, spec: Any) -> None:
    done = ctl("plan", "-f", write(spec), "-o", "json")
    assert done.code == 0
    assert roles(done) == dict.fromkeys(("prefill", "decode"), ("NewGeneration", ["spec"]))
    assert done.json["steps"][0].startswith("create generation ")


def test_images_need_not_be_known(ctl: Ctl, write: Write, spec: Any) -> None:
    for part in ("canary", "router"):
        del spec[part]
    del spec["engine"]["image"]
    done = plan(ctl, write, spec, changed(spec, {"spec.hiCache.enabled": True}))
    assert done.code == 0
    assert roles(done)["prefill"] == ("InPlace", ["spec.hiCache.enabled"])


def test_a_refused_spec_changes_nothing(ctl: Ctl, write: Write, spec: Any) -> None:
    new = changed(spec, {"spec.indexK.dtype": "FP4", "spec.rollout.soak": {}})
    done = plan(ctl, write, spec, new)
    assert done.code == 1
    assert roles(done) == {"prefill": NONE, "decode": NONE}
    assert done.json["steps"] == ["nothing is changed: not-built refuses spec.rollout.soak"]
    assert "Refuse not-built" in done.err
    forced = plan(ctl, write, spec, new, "--force")
    assert forced.code == 1
    assert roles(forced)["decode"] == ("NewGeneration", ["spec.indexK.dtype"])
    broken = plan(ctl, write, spec, changed(spec, {"spec.replicas": "two"}), "--force")
    assert broken.code == 1
    assert roles(broken) == {"prefill": NONE, "decode": NONE}


def test_for_people(ctl: Ctl, write: Write, spec: Any) -> None:
    done = ctl("plan", "-f", write(changed(spec, {"spec.hiCache.enabled": True})), "--from", write(spec, "old"))
    lines = done.out.splitlines()
    assert lines[0] == "prefill  InPlace       spec.hiCache.enabled"
    assert lines[1] == "decode   None"
    assert lines[2].startswith("1. roll prefill in generation ")
    assert ctl("plan", "-f", write(spec), "--from", write(spec, "old")).out.endswith("Nothing changes.\n")
