"""Command-line flags and environment variables of SGLang that the operator renders or owns.

Every name is checked against the wheel of its release by tests/contract. "Owned" means that the operator decides
the value: a user who sets it in `extraArgs` or `env` would undo what makes the pair safe, so that is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_SERVER_ARGS = "sglang/srt/server_args.py"


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: its name, other spellings, the field of our spec to use instead, and where it was read."""

    name: str
    field: str
    aliases: tuple[str, ...] = ()
    source: str = _SERVER_ARGS


OWNED_FLAGS: Final[tuple[Flag, ...]] = (
    Flag("--model-path", "spec.model.source", ("--model",)),
    Flag("--revision", "spec.model.source.huggingFace.revision"),
    Flag("--served-model-name", "spec.model.id"),
    Flag("--host", "nothing: pods listen on all addresses"),
    Flag("--port", "nothing: ports are fixed by role"),
    Flag("--config", "the fields of this API: a file hides flags from policy"),
    Flag("--disaggregation-mode", "spec.prefill and spec.decode"),
    Flag("--disaggregation-transfer-backend", "spec.network.transport"),
    Flag("--disaggregation-bootstrap-port", "nothing: the port is fixed"),
    Flag("--disaggregation-ib-device", "spec.network.devices"),
    Flag("--disaggregation-enable-kv-checksum", "spec.network.checksum"),
    Flag("--disaggregation-decode-enable-radix-cache", "nothing: V4 on CUDA refuses it"),
    Flag("--disaggregation-decode-enable-offload-kvcache", "nothing: V4 refuses it"),
    Flag("--enable-pd-role-switch", "nothing: a pod has one role"),
    Flag("--api-key", "spec.router.apiKeySecretRef: engines take no key"),
    Flag("--admin-api-key", "spec.router.apiKeySecretRef: engines take no key"),
    Flag("--ssl-keyfile", "nothing: engines speak plain HTTP"),
    Flag("--ssl-certfile", "nothing: engines speak plain HTTP"),
    Flag("--ssl-ca-certs", "nothing: engines speak plain HTTP"),
    Flag("--ssl-keyfile-password", "nothing: engines speak plain HTTP"),
    Flag("--enable-ssl-refresh", "nothing: engines speak plain HTTP"),
    Flag("--grpc-mode", "nothing: router and canary speak HTTP"),
    Flag("--smg-grpc-mode", "nothing: router and canary speak HTTP"),
    Flag("--tp-size", "spec.<role>.parallelism.tensor", ("--tensor-parallel-size", "--tp")),
    Flag("--ep-size", "spec.<role>.parallelism.expert", ("--expert-parallel-size", "--ep")),
    Flag("--attn-dp-size", "spec.<role>.parallelism.attentionData", ("--attention-data-parallel-size",)),
    Flag("--dp-size", "spec.<role>.parallelism.attentionData", ("--data-parallel-size", "--dp")),
    Flag("--enable-dp-attention", "spec.<role>.parallelism.attentionData"),
    Flag(
        "--pp-size",
        "nothing: pipeline parallelism is not supported for V4 here",
        ("--pipeline-parallel-size",),
    ),
    Flag("--nnodes", "spec.<role>.nodes"),
    Flag("--node-rank", "spec.<role>.nodes"),
    Flag("--dist-init-addr", "spec.<role>.nodes", ("--nccl-init-addr",)),
    Flag("--page-size", "nothing: V4 forces 256"),
    Flag("--kv-cache-dtype", "nothing: V4 keeps its packed fp8 layout"),
    Flag("--tool-call-parser", "nothing: deepseekv4 belongs to the model"),
    Flag("--reasoning-parser", "nothing: deepseek-v4 belongs to the model"),
    Flag("--enable-metrics", "nothing: always on"),
    Flag("--enable-metrics-for-all-schedulers", "nothing: on with attention data parallelism"),
    Flag("--enable-cache-report", "nothing: always on"),
    Flag("--context-length", "spec.engine.contextLength"),
    Flag("--mem-fraction-static", "spec.engine.memFractionStatic"),
    Flag("--max-running-requests", "spec.engine.maxRunningRequests"),
    Flag("--chunked-prefill-size", "spec.engine.chunkedPrefillSize"),
    Flag("--disable-overlap-schedule", "spec.overlapSchedule"),
    Flag("--disable-radix-cache", "spec.hiCache (prefill reuse needs the radix cache)"),
    Flag("--enable-hierarchical-cache", "spec.hiCache.enabled", ("--enable-hicache",)),
    Flag("--hicache-ratio", "spec.hiCache.ratio"),
    Flag("--hicache-size", "spec.hiCache.ratio: V4 refuses an absolute size"),
    Flag("--hicache-write-policy", "spec.hiCache.writePolicy"),
    Flag("--hicache-io-backend", "spec.hiCache.ioBackend"),
    Flag("--hicache-mem-layout", "spec.hiCache.layout"),
    Flag("--hicache-storage-backend", "nothing: L3 storage corrupts V4 (sgl-project/sglang #36179, #30760)"),
    Flag("--enable-deepseek-v4-fp4-indexer", "spec.indexK.dtype"),
    Flag("--speculative-algorithm", "spec.engine.speculative.algorithm", ("--speculative-algo",)),
    Flag("--speculative-num-steps", "spec.engine.speculative.numSteps"),
    Flag("--speculative-eagle-topk", "spec.engine.speculative.eagleTopk"),
    Flag("--speculative-num-draft-tokens", "spec.engine.speculative.numDraftTokens"),
    Flag(
        "--speculative-draft-model-path",
        "spec.engine.speculative.draftModelPath",
        ("--speculative-draft-model",),
    ),
    Flag("--speculative-dspark-block-size", "spec.engine.speculative.dsparkBlockSize"),
    Flag("--enable-hisparse", "nothing: HiSparse lowers scores on V4 in PD (sgl-project/sglang #31482)"),
)

OWNED_ENV: Final[dict[str, str]] = {
    "SGLANG_HOST_IP": "nothing: it is the pod's address",
    "HOST_IP": "nothing: it is the pod's address",
    "SGLANG_DISAGGREGATION_NIXL_BACKEND": "spec.network.backend",
    "SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX": "nothing: early send corrupts (policy rule early-send)",
    "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE": "nothing: pages reused after an abort corrupt",
    "SGLANG_ENABLE_UNIFIED_RADIX_TREE": "nothing: it is set where V4's HiCache needs it",
    "SGLANG_PLUGINS": "spec.indexK.dtype and spec.network.checksum",
    "DSV4_INDEX_K_DTYPE": "spec.indexK.dtype",
    "UCX_TLS": "spec.network.ucxTransports",
    "UCX_NET_DEVICES": "spec.network.devices",
    "HF_TOKEN": "spec.model.source.huggingFace.tokenSecretRef",
    "POD_NAME": "nothing: it is the pod's own",
    "POD_IP": "nothing: it is the pod's own",
}
"""Environment variables that the operator sets itself, with the field to use instead."""

_BY_SPELLING: Final[dict[str, Flag]] = {
    spelling: flag for flag in OWNED_FLAGS for spelling in (flag.name, *flag.aliases)
}


def owned_flag(argument: str) -> Flag | None:
    """The owned flag that `argument` sets, also as `--flag=value` or as an abbreviation, which argparse accepts.

    An abbreviation is owned when every flag it could mean among ours starts with it: `--hicache-rat` is
    `--hicache-ratio` to argparse.
    """
    name = argument.split("=", 1)[0]
    if not name.startswith("--"):
        return None
    if name in _BY_SPELLING:
        return _BY_SPELLING[name]
    for spelling, flag in _BY_SPELLING.items():
        if len(name) > 3 and spelling.startswith(name):
            return flag
    return None
