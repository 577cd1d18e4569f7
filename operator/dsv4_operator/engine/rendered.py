"""Every flag and variable that the operator can render, and the releases on which it does, each with why and source.

`command.py` asks here before it renders what is not in all releases. A unit test holds the ranges against the wheel
data: a range may be narrower than the wheel's (`why` says so), never wider.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from dsv4_operator.engine.releases import Release, ReleaseRange


@dataclass(frozen=True, slots=True)
class Rendered:
    """One name, where it is rendered, and why."""

    name: str
    why: str
    source: str
    releases: ReleaseRange = field(default_factory=ReleaseRange)


_ARGS = "sglang/srt/server_args.py up to 0.5.19, srt/arg_groups/fields/ later"
_DISAGG = "sglang/srt/disaggregation/common/conn.py"
_ENVIRON = "sglang/srt/environ.py"

_EVERYWHERE: Final = {
    "--model-path": "spec.model.source",
    "--revision": "spec.model.source.huggingFace.revision",
    "--served-model-name": "spec.model.id",
    "--host": "the default 127.0.0.1 would also hide the bootstrap registry",
    "--port": "fixed by role",
    "--tool-call-parser": "deepseekv4",
    "--reasoning-parser": "deepseek-v4",
    "--enable-metrics": "always on",
    "--enable-cache-report": "canaries tell cold from cached answers by it",
    "--watchdog-timeout": "a forward that hangs ends the server",
    "--disaggregation-mode": "the role",
    "--disaggregation-transfer-backend": "the default is mooncake",
    "--disaggregation-bootstrap-port": "fixed",
    "--disaggregation-ib-device": "spec.network.devices",
    "--tp-size": "spec.<role>.parallelism.tensor",
    "--ep-size": "spec.<role>.parallelism.expert",
    "--enable-metrics-for-all-schedulers": "with attention data parallelism",
    "--nnodes": "spec.<role>.nodes",
    "--node-rank": "the pod's index in its group",
    "--dist-init-addr": "SGLang does not refuse its absence with several nodes",
    "--page-size": "V4 forces 256; written so that both roles visibly agree",
    "--kv-cache-dtype": "V4 keeps its packed fp8 layout",
    "--context-length": "spec.engine.contextLength",
    "--mem-fraction-static": "spec.engine.memFractionStatic",
    "--max-running-requests": "spec.engine.maxRunningRequests",
    "--disable-overlap-schedule": "spec.overlapSchedule, and by release",
    "--speculative-algorithm": "spec.engine.speculative",
    "--speculative-num-steps": "the automatic choice picks a top-k that V4 asserts on",
    "--speculative-eagle-topk": "V4 takes 1 alone",
    "--speculative-num-draft-tokens": "given with the other two",
    "--speculative-draft-model-path": "spec.engine.speculative.draftModelPath",
    "--chunked-prefill-size": "spec.engine.chunkedPrefillSize, on prefill",
    "--enable-hierarchical-cache": "spec.hiCache, on prefill: decode refuses it for V4",
    "--hicache-ratio": "the only size that V4 takes",
    "--hicache-write-policy": "spec.hiCache.writePolicy",
    "--hicache-io-backend": "spec.hiCache.ioBackend",
    "--hicache-mem-layout": "spec.hiCache.layout",
}

ATTN_DP: Final = Rendered(
    "--attn-dp-size",
    "attention data parallelism has a size of its own; --dp-size with --enable-dp-attention is deprecated",
    _ARGS,
    ReleaseRange.of("0.5.22"),
)
OLD_DP_SIZE: Final = Rendered(
    "--dp-size", "attention data parallelism before it had a flag of its own", _ARGS, ReleaseRange.of(None, "0.5.21")
)
OLD_DP_ATTENTION: Final = Rendered(
    "--enable-dp-attention", "gives --dp-size its meaning", _ARGS, ReleaseRange.of(None, "0.5.21")
)
CHECKSUM: Final = Rendered(
    "--disaggregation-enable-kv-checksum", "spec.network.checksum", _ARGS, ReleaseRange.of("0.5.21")
)
FP4_INDEXER: Final = Rendered(
    "--enable-deepseek-v4-fp4-indexer", "spec.indexK.dtype FP4", _ARGS, ReleaseRange.of("0.5.13")
)
DSPARK_BLOCK: Final = Rendered(
    "--speculative-dspark-block-size", "spec.engine.speculative.dsparkBlockSize", _ARGS, ReleaseRange.of("0.5.16")
)
RETRACTION_BACKUP: Final = Rendered(
    "--disaggregation-decode-retraction-backup",
    "none ends a retracted request with 503: before 0.5.22 V4 has no copy to come back from (the method raises), and "
    "from 0.5.22 on it is prefilled again without a flag; none is a choice from 0.5.21 on",
    "sglang/srt/disaggregation/decode.py",
    ReleaseRange.of("0.5.21", "0.5.21"),
)
UNIFIED_RADIX_TREE: Final = Rendered(
    "SGLANG_ENABLE_UNIFIED_RADIX_TREE",
    "HiCache of V4 lives in the unified tree; needed at 0.5.12, implied for sliding windows later, retired in 0.5.21",
    _ENVIRON,
    ReleaseRange.of(None, "0.5.20"),
)
EARLY_SEND: Final = Rendered(
    "SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX",
    "off: NIXL drops the fence of the running forward (sgl-project/sglang PR #39417), and up to 0.5.22 a cached prefix "
    "could leave before it was loaded (#44070)",
    _ENVIRON,
    ReleaseRange.of("0.5.15"),
)
DEFERRED_RELEASE: Final = Rendered(
    "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE",
    "on: an aborted request keeps its pages until prefill has drained (#35049, #35360); default from 0.5.21 on, where "
    "NIXL follows it too",
    _ENVIRON,
    ReleaseRange.of("0.5.19"),
)
HOST_IP: Final = Rendered("SGLANG_HOST_IP", "the address that peers connect to", _DISAGG)
PLUGINS: Final = Rendered(
    "SGLANG_PLUGINS",
    "dsv4_guard, where BF16 index-K or the KV checksum need the guard: the list of plugins that may load",
    "sglang/srt/plugins/__init__.py",
)
NIXL_BACKEND: Final = Rendered("SGLANG_DISAGGREGATION_NIXL_BACKEND", "spec.network.backend", _ENVIRON)

RENDERED_FLAGS: Final[dict[str, Rendered]] = {
    **{name: Rendered(name, why, _ARGS) for name, why in _EVERYWHERE.items()},
    **{
        entry.name: entry
        for entry in (
            ATTN_DP,
            OLD_DP_SIZE,
            OLD_DP_ATTENTION,
            CHECKSUM,
            FP4_INDEXER,
            DSPARK_BLOCK,
            RETRACTION_BACKUP,
        )
    },
}
RENDERED_ENV: Final[dict[str, Rendered]] = {
    entry.name: entry for entry in (HOST_IP, NIXL_BACKEND, UNIFIED_RADIX_TREE, EARLY_SEND, DEFERRED_RELEASE, PLUGINS)
}
"""SGLang's own variables; POD_NAME, POD_IP, UCX_TLS, HF_TOKEN and DSV4_INDEX_K_DTYPE are read by others."""

OVERLAP_UNSAFE: Final = ReleaseRange.of(None, "0.5.15")
"""Auto turns the overlapped scheduler off: ordering hole with early send in 0.5.15, no barrier at all in 0.5.12, and
the hang with EAGLE and attention data parallelism (sgl-project/sglang #27938) is of 0.5.13."""


def renders(entry: Rendered, release: Release) -> bool:
    """Whether `entry` is rendered on `release`; an unknown newer release counts as the newest known one."""
    return release in entry.releases
