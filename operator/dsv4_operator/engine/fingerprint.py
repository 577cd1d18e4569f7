"""The KV fingerprint: a short hash over all that decides whether a prefill's bytes mean the same to a decode.

SGLang's handshake compares page size, KV dtype and layout name, but not its own version, the model, the weights or
the index-K format (sglang srt/disaggregation/common/conn.py, read at 0.5.23): two such engines pair and corrupt
silently. So the operator compares, and never lets two fingerprints share a router.

Not part of it: HiCache, resources, labels, replicas, the overlap scheduler; they change how bytes are made, not what
they mean.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from dsv4_operator.api.v1alpha1.roles import RoleSpec
from dsv4_operator.api.v1alpha1.spec import DSV4DeploymentSpec
from dsv4_operator.engine.command import eagle_numbers
from dsv4_operator.engine.parallelism import tensor_size
from dsv4_operator.engine.releases import Release

FINGERPRINT_LENGTH = 8
"""Hex digits kept: names must stay within 63 characters, and one deployment has few generations."""


def fingerprint_inputs(spec: DSV4DeploymentSpec, release: Release, image: str) -> dict[str, Any]:
    """Everything the fingerprint is made of, by the path of the field that a user would change."""
    return {
        "release": str(release),
        "spec.engine.image": image,
        "spec.model.id": spec.model.id,
        "spec.model.source": spec.model.source.model_dump(
            mode="json", exclude={"hugging_face": {"token_secret_ref", "cache"}}
        ),
        "spec.indexK.dtype": spec.index_k.dtype.value,
        # With the numbers that apply: writing down a default is no change.
        "spec.engine.speculative": spec.engine.speculative.model_dump(mode="json", by_alias=False)
        | eagle_numbers(spec.engine.speculative),
        "spec.engine.contextLength": spec.engine.context_length,
        "spec.engine.extraArgs": spec.engine.extra_args,
        "spec.engine.env": [variable.model_dump(mode="json") for variable in spec.engine.env],
        "spec.network.backend": spec.network.backend,
        "spec.network.checksum": spec.network.checksum,
        "spec.prefill.parallelism": _topology(spec.prefill),
        "spec.decode.parallelism": _topology(spec.decode),
    }


def kv_fingerprint(spec: DSV4DeploymentSpec, release: Release, image: str) -> str:
    """Eight hex digits; equal exactly when prefill and decode of the two specs may be paired."""
    canonical = json.dumps(fingerprint_inputs(spec, release, image), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:FINGERPRINT_LENGTH]


def _topology(role: RoleSpec) -> dict[str, int | None]:
    """How a role's KV is sharded, with the sizes that apply when fields are unset."""
    return {
        "tensor": tensor_size(role),
        "attentionData": role.parallelism.attention_data,
        "expert": role.parallelism.expert,
        "nodes": role.nodes,
    }


def input_digests(spec: DSV4DeploymentSpec, release: Release, image: str) -> dict[str, str]:
    """A short digest of each fingerprint input by its path: what is compared, without what it says."""
    inputs = fingerprint_inputs(spec, release, image)
    return {
        path: hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]
        for path, value in inputs.items()
    }


def changed_inputs(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Paths of the fields by which two fingerprints differ, in the order of the inputs (or digests)."""
    return [path for path in new if old.get(path) != new[path]]
