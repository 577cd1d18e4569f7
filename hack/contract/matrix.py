"""The specs that the contract tests let the real ServerArgs resolve, and the commands that it must refuse."""

from __future__ import annotations

import copy
from itertools import product
from typing import Any

from dsv4_operator.api.constants import Role
from dsv4_operator.api.v1alpha1 import DSV4DeploymentSpec, parse_deployment
from dsv4_operator.engine.command import render_command
from dsv4_operator.engine.releases import Release

Patch = dict[str, Any]
LOOPBACK = "127.0.0.1"
ARCHITECTURES = ("SM100", "SM103", "SM120")

BASE: dict[str, Any] = {
    "apiVersion": "serving.dsv4.dev/v1alpha1",
    "kind": "DSV4Deployment",
    "metadata": {"name": "contract", "namespace": "default"},
    "spec": {
        "model": {"id": "deepseek-v4", "source": {"hostPath": {"path": "/data/model"}}},
        "engine": {"image": "registry.example/sglang:0.5.23"},
    },
}


def laid_over(target: Patch, patch: Patch) -> Patch:
    """RFC 7396 merge patch without removals."""
    result = copy.deepcopy(target)
    for key, value in patch.items():
        below = result.get(key)
        result[key] = laid_over(below if isinstance(below, dict) else {}, value) if isinstance(value, dict) else value
    return result


def spec_of(*patches: Patch) -> DSV4DeploymentSpec:
    """The base spec with patches laid over it; raises what the API raises for a bad one."""
    found = BASE
    for patch in patches:
        found = laid_over(found, {"spec": patch})
    return parse_deployment(found).spec


def _role(**parallelism: int) -> Patch:
    return {"parallelism": parallelism}


HICACHE: dict[str, Patch] = {
    "off": {},
    "default": {"hiCache": {"enabled": True}},
    "layer-first": {"hiCache": {"enabled": True, "layout": "LayerFirst", "ratio": "1.5"}},
    "direct": {"hiCache": {"enabled": True, "ioBackend": "Direct", "layout": "PageFirstDirect"}},
    "write-back": {"hiCache": {"enabled": True, "writePolicy": "WriteBack", "ratio": "4"}},
    "selective": {
        "hiCache": {
            "enabled": True,
            "writePolicy": "WriteThroughSelective",
            "ioBackend": "Direct",
            "layout": "LayerFirst",
        }
    },
}
OVERLAP: dict[str, Patch] = {name: {"overlapSchedule": name} for name in ("Auto", "Enabled", "Disabled")}
DTYPE: dict[str, Patch] = {name: {"indexK": {"dtype": name}} for name in ("FP8", "FP4")}
SPECULATION: dict[str, Patch] = {
    "none": {},
    "eagle": {"engine": {"speculative": {"algorithm": "EAGLE"}}},
    "eagle-5-1-6": {"engine": {"speculative": {"algorithm": "EAGLE", "numSteps": 5, "numDraftTokens": 6}}},
}
DSPARK: Patch = {"engine": {"speculative": {"algorithm": "DSPARK", "dsparkBlockSize": 7, "draftModelPath": "/model"}}}
SHAPES: dict[str, Patch] = {
    "tp4": {},
    "tp8": {"prefill": {"gpus": 8}, "decode": {"gpus": 8}},
    "tp8-dp8": {
        "prefill": {"gpus": 8} | _role(attentionData=8),
        "decode": {"gpus": 8} | _role(attentionData=8),
    },
    "tp8-dp8-ep8": {
        "prefill": {"gpus": 8} | _role(attentionData=8, expert=8),
        "decode": {"gpus": 8} | _role(attentionData=8, expert=8),
    },
    "tp4-dp2": {"prefill": _role(attentionData=2), "decode": _role(attentionData=2)},
    "2p4-1d8": {"decode": {"gpus": 8}},
    "two-nodes": {"prefill": {"gpus": 8, "nodes": 2}, "decode": {"gpus": 8, "nodes": 2}},
    "decode-two-nodes-dp": {"decode": {"gpus": 8, "nodes": 2} | _role(attentionData=4)},
}
SINGLES: dict[str, Patch] = {
    "devices": {"network": {"devices": ["mlx5_0", "mlx5_1"]}},
    "checksum": {"network": {"checksum": True}},
    "bf16": {"indexK": {"dtype": "BF16"}},
    "bf16-hicache": {"indexK": {"dtype": "BF16"}, "network": {"checksum": True}, "hiCache": {"enabled": True}},
    "context": {"engine": {"contextLength": 65536}},
    "memory": {"engine": {"memFractionStatic": "0.85"}},
    "running": {"engine": {"maxRunningRequests": 64}},
    "chunk": {"engine": {"chunkedPrefillSize": 8192}},
    "chunk-dp": {"engine": {"chunkedPrefillSize": 16384}, **SHAPES["tp8-dp8"]},
    "running-dp": {"engine": {"maxRunningRequests": 512}, **SHAPES["tp8-dp8"]},
    "extra": {"engine": {"extraArgs": ["--max-queued-requests", "64", "--log-level", "warning"]}},
    "role-extra": {"decode": {"extraArgs": ["--num-reserved-decode-tokens", "1024"]}},
    "ep": {"prefill": {"gpus": 8} | _role(expert=8), "decode": {"gpus": 8} | _role(expert=8)},
}


def specs() -> dict[str, Patch]:
    """The matrix: HiCache with everything it may meet, speculation with shapes, and every other field alone."""
    found: dict[str, Patch] = {}
    for (cache, a), (overlap, b), (dtype, c) in product(HICACHE.items(), OVERLAP.items(), DTYPE.items()):
        found[f"hicache-{cache}/{overlap}/{dtype}"] = laid_over(laid_over(a, b), c)
    for (speculation, a), (shape, b) in product(SPECULATION.items(), SHAPES.items()):
        found[f"{speculation}/{shape}"] = laid_over(a, b)
    for shape, patch in SHAPES.items():
        found[f"hicache/{shape}"] = laid_over(patch, HICACHE["default"])
    for speculation in ("eagle", "eagle-5-1-6"):
        for overlap, patch in OVERLAP.items():
            found[f"hicache-{speculation}/{overlap}"] = laid_over(
                laid_over(SPECULATION[speculation], patch), HICACHE["default"]
            )
    for shape in ("tp4", "tp8", "2p4-1d8", "two-nodes"):
        found[f"dspark/{shape}"] = laid_over(SHAPES[shape], DSPARK)
    found["dspark/tp8-dp8"] = laid_over(
        laid_over(SHAPES["tp8-dp8"], DSPARK), {"engine": {"extraArgs": ["--enable-dp-lm-head"]}}
    )
    found["dspark/bundled"] = {"engine": {"speculative": {"algorithm": "DSPARK"}}}
    found["dspark/hicache"] = laid_over(DSPARK, HICACHE["default"])
    found["dspark/FP4"] = laid_over(DSPARK, DTYPE["FP4"])
    found |= {f"single/{name}": patch for name, patch in SINGLES.items()}
    return found


def job(name: str, spec: DSV4DeploymentSpec, release: Release, role: Role, model: str) -> dict[str, Any]:
    """What the driver resolves for a spec: the rendered command, with what Kubernetes would fill in."""
    command = render_command(spec, release, role)
    argv = [
        model
        if word == "/model"
        else word.replace("$(LWS_WORKER_INDEX)", "0").replace("$(LWS_LEADER_ADDRESS)", LOOPBACK)
        for word in command.argv[3:]
    ]
    env = {entry.name: entry.value or "10.0.0.1" for entry in command.env if entry.secret is None}
    return {"id": f"{name}|{role.value}", "argv": argv, "env": env}
