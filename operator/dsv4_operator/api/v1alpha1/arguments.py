"""Arguments and variables that people may add to an engine, and those they may not because the operator sets them.

The rules here catch what one list item shows by itself, at `kubectl apply`; `dsv4_operator.engine.flags` knows more
(abbreviations, what depends on the release) and policy refuses the rest by name.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import Field

from dsv4_operator.api.base import ApiModel, CelRule, Checked, ListMap, ObjectName


def _refuse_flags(name: str, flags: str, message: str, *, prefix: str = "") -> CelRule:
    """A rule that an argument is none of `flags` (and begins not with `prefix`), neither bare nor as `--flag=value`.

    A split and a list: a regular expression costs more than the API server's budget for rules.
    """
    refused = [f"--{flag}" for flag in flags.split()]
    rule = f"!(self.split('=', 2)[0] in {refused})"
    return CelRule(
        name=name,
        rule=f"{rule} && !self.startsWith('{prefix}')" if prefix else rule,
        holds=lambda argument: (
            argument.split("=", 1)[0] not in refused and not (prefix and argument.startswith(prefix))
        ),
        message=message,
    )


ARGUMENT_RULES: Final = (
    CelRule(
        name="one-argument-per-item",
        rule="!self.matches('^--[A-Za-z0-9-]+[ \\t]')",
        holds=lambda argument: re.match(r"--[A-Za-z0-9-]+[ \t]", argument) is None,
        message="flag and value stand in one item, so SGLang would read them as one unknown flag; "
        "write two items, or --flag=value",
    ),
    _refuse_flags(
        "owned-role-flags",
        "disaggregation-mode disaggregation-transfer-backend disaggregation-bootstrap-port disaggregation-ib-device "
        "disaggregation-enable-kv-checksum disaggregation-decode-enable-radix-cache "
        "disaggregation-decode-enable-offload-kvcache enable-pd-role-switch",
        "the operator owns this flag, since both roles must agree on how KV travels; remove it and use spec.network "
        "(transport, devices, checksum); role and bootstrap port follow from spec.prefill and spec.decode",
    ),
    _refuse_flags(
        "owned-address-flags",
        "host port config",
        "the operator owns this flag: pods listen on all addresses, ports are fixed by role, and a --config file would "
        "hide flags from policy; remove it and write what the file holds into this spec",
    ),
    _refuse_flags(
        "owned-parallelism-flags",
        "tp tp-size tensor-parallel-size ep ep-size expert-parallel-size dp dp-size data-parallel-size attn-dp-size "
        "attention-data-parallel-size enable-dp-attention pp-size pipeline-parallel-size "
        "nnodes node-rank dist-init-addr nccl-init-addr",
        "the operator owns this flag, since GPUs, ranks and addresses must fit together; remove it and use gpus, nodes "
        "and parallelism of spec.prefill and spec.decode",
    ),
    _refuse_flags(
        "owned-hicache-flags",
        "enable-hierarchical-cache enable-hicache disable-radix-cache",
        "the operator owns this flag: HiCache runs on prefill alone and in the forms V4 accepts; "
        "remove it and use spec.hiCache",
        prefix="--hicache-",
    ),
    _refuse_flags(
        "owned-cache-format-flags",
        "page-size kv-cache-dtype enable-deepseek-v4-fp4-indexer",
        "the operator owns this flag: it changes what the bytes of KV mean, V4 forces page size 256 and its own KV "
        "layout; remove it and use spec.indexK.dtype for the index keys",
    ),
    _refuse_flags(
        "owned-model-flags",
        "model model-path revision served-model-name tool-call-parser reasoning-parser",
        "the operator owns this flag, since both roles must serve the same weights under one name, with the parsers of "
        "the model; remove it and use spec.model",
    ),
    _refuse_flags(
        "owned-speculation-flags",
        "speculative-algorithm speculative-algo speculative-num-steps speculative-eagle-topk "
        "speculative-num-draft-tokens speculative-draft-model-path speculative-draft-model "
        "speculative-dspark-block-size",
        "the operator owns this flag, since both roles must speculate alike; remove it and use spec.engine.speculative",
    ),
    _refuse_flags(
        "owned-scheduler-flags",
        "disable-overlap-schedule",
        "the operator owns this flag, since policy decides it by release; remove it and use spec.overlapSchedule",
    ),
    _refuse_flags(
        "owned-door-flags",
        "api-key admin-api-key ssl-keyfile ssl-certfile ssl-ca-certs ssl-keyfile-password enable-ssl-refresh "
        "grpc-mode smg-grpc-mode",
        "engines speak plain HTTP without a key: canary, router and decode's requests to prefill bring none; remove it "
        "and use spec.router.apiKeySecretRef, and end TLS before the router",
    ),
    _refuse_flags(
        "owned-metrics-flags",
        "enable-metrics enable-metrics-for-all-schedulers enable-cache-report",
        "the operator sets this flag always, since canary and alerts read it; remove it",
    ),
)
"""Rules on one command-line argument."""

OWNED_VARIABLES: Final[dict[str, str]] = {
    "UCX_TLS": "spec.network.ucxTransports",
    "UCX_NET_DEVICES": "spec.network.devices",
    "SGLANG_DISAGGREGATION_NIXL_BACKEND": "spec.network.backend",
    "SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX": "",
    "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE": "",
    "SGLANG_PLUGINS": "spec.indexK.dtype",
    "DSV4_INDEX_K_DTYPE": "spec.indexK.dtype",
    "HF_TOKEN": "spec.model.source.huggingFace.tokenSecretRef",
    "SGLANG_HOST_IP": "",
    "HOST_IP": "",
    "POD_NAME": "",
    "POD_IP": "",
}
"""Variables that the operator sets, with the field to use instead where there is one."""

ArgList = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=4096), Checked(ARGUMENT_RULES)]], Field(max_length=128)
]
"""Command-line arguments, one per item."""


class SecretKeyRef(ApiModel):
    """One key of a Secret in the same namespace."""

    name: ObjectName
    """Name of the Secret."""
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]
    """Key inside the Secret."""


class EnvVar(ApiModel):
    """One environment variable; a value, or a key of a Secret."""

    cel_rules = (
        CelRule(
            name="one-variable-source",
            rule="has(self.value) != has(self.secretKeyRef)",
            holds=lambda env: (env.value is None) != (env.secret_key_ref is None),
            message="a variable has one source: set exactly one of value and secretKeyRef",
        ),
        CelRule(
            name="owned-variables",
            rule="!(self.name in [" + ", ".join(f"'{name}'" for name in OWNED_VARIABLES) + "])",
            holds=lambda env: env.name not in OWNED_VARIABLES,
            message="the operator sets this variable, and another value could break the pair; "
            "remove it, or use its field ("
            + ", ".join(f"{name}: {field}" for name, field in OWNED_VARIABLES.items() if field)
            + ")",
            field_path=".name",
        ),
    )

    name: Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    """Name of the variable."""
    value: Annotated[str, Field(max_length=4096)] | None = None
    """Its value."""
    secret_key_ref: SecretKeyRef | None = None
    """A key of a Secret whose content becomes the value."""


EnvList = Annotated[list[EnvVar], Field(max_length=128), ListMap("name")]
"""Environment variables, told apart by name."""
