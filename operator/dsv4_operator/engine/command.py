"""(spec, release, role) -> the command line and environment of one engine, exactly as a real image takes them.

Which names a release takes stands in `rendered.py`, with sources; tests/contract checks every one against the wheel of
its release. What a release does not have is not rendered: whether it may then run at all is policy's to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from dsv4_operator.api.constants import BOOTSTRAP_PORT, DIST_INIT_PORT, ENGINE_PORT, Role
from dsv4_operator.api.v1alpha1.engine import (
    HiCacheSpec,
    HiCacheWritePolicy,
    IndexKDtype,
    SecretKeyRef,
    SpeculativeAlgorithm,
    SpeculativeSpec,
)
from dsv4_operator.api.v1alpha1.roles import NetworkSpec, RoleSpec
from dsv4_operator.api.v1alpha1.spec import DSV4DeploymentSpec, OverlapSchedule
from dsv4_operator.engine.guard import INDEX_K_ENV, PLUGIN, guarded_index_k
from dsv4_operator.engine.parallelism import tensor_size
from dsv4_operator.engine.releases import DEFAULT_RELEASE, Release
from dsv4_operator.engine.rendered import (
    ATTN_DP,
    CHECKSUM,
    DEFERRED_RELEASE,
    DSPARK_BLOCK,
    EARLY_SEND,
    FP4_INDEXER,
    OVERLAP_UNSAFE,
    PLUGINS,
    RETRACTION_BACKUP,
    UNIFIED_RADIX_TREE,
    renders,
)

EAGLE_DEFAULTS: Final = {"num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 4}
"""What unset numbers of EAGLE mean: SGLang's automatic choice picks another top-k and asserts for V4."""

MODEL_MOUNT: Final = "/model"
"""Where weights from a volume appear in the engine container."""

_WRITE_POLICY: Final = {
    HiCacheWritePolicy.WRITE_THROUGH: "write_through",
    HiCacheWritePolicy.WRITE_THROUGH_SELECTIVE: "write_through_selective",
    HiCacheWritePolicy.WRITE_BACK: "write_back",
}
_IO_BACKEND: Final = {"Kernel": "kernel", "Direct": "direct"}
_LAYOUT: Final = {
    "LayerFirst": "layer_first",
    "PageFirst": "page_first",
    "PageFirstDirect": "page_first_direct",
}


@dataclass(frozen=True, slots=True)
class EnvEntry:
    """One environment variable: a literal, a field of the pod (`field_path`), or a key of a Secret."""

    name: str
    value: str | None = None
    field_path: str | None = None
    secret: SecretKeyRef | None = None


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """What the engine container runs: `argv` (program first) and `env` (unique names, stable order)."""

    argv: list[str]
    env: list[EnvEntry] = field(default_factory=list)


def render_command(spec: DSV4DeploymentSpec, release: Release, role: Role) -> EngineCommand:
    """The engine's command and environment. Total: any spec that parses renders; policy decides what may run."""
    role_spec = spec.prefill if role is Role.PREFILL else spec.decode
    argv = ["python3", "-m", "sglang.launch_server"]
    for part in (
        _model(spec),
        _serving(role),
        _disaggregation(spec.network, release, role),
        _parallelism(role_spec, release, role),
        _kv_format(spec, release),
        _scheduler(spec, release),
        _speculation(spec, release),
        _prefill_only(spec) if role is Role.PREFILL else iter(()),
        spec.engine.extra_args,
        role_spec.extra_args,
    ):
        argv.extend(part)
    return EngineCommand(argv=argv, env=_environment(spec, release, role))


def disables_overlap(spec: DSV4DeploymentSpec, release: Release = DEFAULT_RELEASE) -> bool:
    """Whether the overlapped scheduler is turned off.

    Auto turns it off up to 0.5.15 (see `OVERLAP_UNSAFE`) and for EAGLE with attention data parallelism, which hangs
    (sgl-project/sglang #27938), and leaves it on otherwise, where the canary watches it.
    """
    if spec.overlap_schedule is OverlapSchedule.AUTO:
        attention_dp = max(spec.prefill.parallelism.attention_data, spec.decode.parallelism.attention_data)
        hangs = spec.engine.speculative.algorithm is SpeculativeAlgorithm.EAGLE and attention_dp > 1
        return hangs or release in OVERLAP_UNSAFE
    return spec.overlap_schedule is OverlapSchedule.DISABLED


def _model(spec: DSV4DeploymentSpec) -> Iterator[str]:
    source = spec.model.source
    if source.hugging_face is not None:
        yield from ("--model-path", source.hugging_face.repo, "--revision", source.hugging_face.revision)
    elif source.persistent_volume_claim is not None and source.persistent_volume_claim.path:
        yield from ("--model-path", f"{MODEL_MOUNT}/{source.persistent_volume_claim.path}")
    else:
        yield from ("--model-path", MODEL_MOUNT)
    yield from ("--served-model-name", spec.model.id)


def _serving(role: Role) -> Iterator[str]:
    # The default host is 127.0.0.1, and the bootstrap registry binds to the same one.
    yield from ("--host", "0.0.0.0", "--port", str(ENGINE_PORT[role]))
    yield from ("--tool-call-parser", "deepseekv4", "--reasoning-parser", "deepseek-v4")
    yield from ("--enable-metrics", "--enable-cache-report")
    yield from ("--watchdog-timeout", "300")


def _disaggregation(network: NetworkSpec, release: Release, role: Role) -> Iterator[str]:
    yield from ("--disaggregation-mode", role.value)
    # Always explicit: the default backend is mooncake.
    yield from ("--disaggregation-transfer-backend", network.transport.lower())
    yield from ("--disaggregation-bootstrap-port", str(BOOTSTRAP_PORT))
    if network.devices:
        yield from ("--disaggregation-ib-device", ",".join(network.devices))
    if network.checksum and renders(CHECKSUM, release):
        yield CHECKSUM.name
    if role is Role.DECODE and renders(RETRACTION_BACKUP, release):
        yield from (RETRACTION_BACKUP.name, "none")


def _parallelism(role_spec: RoleSpec, release: Release, role: Role) -> Iterator[str]:
    yield from ("--tp-size", str(tensor_size(role_spec)))
    if role_spec.parallelism.attention_data > 1:
        size = str(role_spec.parallelism.attention_data)
        yield from (ATTN_DP.name, size) if renders(ATTN_DP, release) else ("--dp-size", size, "--enable-dp-attention")
        yield "--enable-metrics-for-all-schedulers"
    if role_spec.parallelism.expert is not None:
        yield from ("--ep-size", str(role_spec.parallelism.expert))
    if role_spec.nodes > 1:
        # Variables that the LeaderWorkerSet controller sets; the kubelet expands $(...) in arguments. SGLang does not
        # refuse a missing --dist-init-addr, so it is always rendered.
        yield from ("--nnodes", str(role_spec.nodes), "--node-rank", "$(LWS_WORKER_INDEX)")
        yield from ("--dist-init-addr", f"$(LWS_LEADER_ADDRESS):{DIST_INIT_PORT[role]}")


def _kv_format(spec: DSV4DeploymentSpec, release: Release) -> Iterator[str]:
    # V4 forces 256 and resolves auto to its packed fp8 layout; explicit, so that both roles visibly agree.
    yield from ("--page-size", "256", "--kv-cache-dtype", "auto")
    if spec.index_k.dtype is IndexKDtype.FP4 and renders(FP4_INDEXER, release):
        yield FP4_INDEXER.name
    if spec.engine.context_length is not None:
        yield from ("--context-length", str(spec.engine.context_length))


def _scheduler(spec: DSV4DeploymentSpec, release: Release) -> Iterator[str]:
    if spec.engine.mem_fraction_static is not None:
        yield from ("--mem-fraction-static", spec.engine.mem_fraction_static)
    if spec.engine.max_running_requests is not None:
        yield from ("--max-running-requests", str(spec.engine.max_running_requests))
    if disables_overlap(spec, release):
        yield "--disable-overlap-schedule"


def _speculation(spec: DSV4DeploymentSpec, release: Release) -> Iterator[str]:
    speculative = spec.engine.speculative
    if speculative.algorithm is SpeculativeAlgorithm.NONE:
        return
    yield from ("--speculative-algorithm", speculative.algorithm.value)
    if speculative.algorithm is SpeculativeAlgorithm.EAGLE:
        numbers = eagle_numbers(speculative)
        yield from ("--speculative-num-steps", str(numbers["num_steps"]))
        yield from ("--speculative-eagle-topk", str(numbers["eagle_topk"]))
        yield from ("--speculative-num-draft-tokens", str(numbers["num_draft_tokens"]))
    if speculative.draft_model_path is not None:
        yield from ("--speculative-draft-model-path", speculative.draft_model_path)
    if speculative.dspark_block_size is not None and renders(DSPARK_BLOCK, release):
        yield from (DSPARK_BLOCK.name, str(speculative.dspark_block_size))


def eagle_numbers(speculative: SpeculativeSpec) -> dict[str, int]:
    """The numbers of EAGLE that apply, also where fields are unset; none without EAGLE."""
    if speculative.algorithm is not SpeculativeAlgorithm.EAGLE:
        return {}
    return {name: getattr(speculative, name) or default for name, default in EAGLE_DEFAULTS.items()}


def _prefill_only(spec: DSV4DeploymentSpec) -> Iterator[str]:
    if spec.engine.chunked_prefill_size is not None:
        yield from ("--chunked-prefill-size", str(spec.engine.chunked_prefill_size))
    if spec.hi_cache.enabled:
        # On prefill alone: decode refuses HiCache for V4.
        yield "--enable-hierarchical-cache"
        yield from ("--hicache-ratio", spec.hi_cache.ratio)
        io_backend, layout, write_policy = hicache_names(spec.hi_cache)
        yield from ("--hicache-write-policy", write_policy)
        yield from ("--hicache-io-backend", io_backend)
        yield from ("--hicache-mem-layout", layout)


def hicache_names(cache: HiCacheSpec) -> tuple[str, str, str]:
    """I/O backend, layout and write policy as SGLang calls them."""
    return _IO_BACKEND[cache.io_backend], _LAYOUT[cache.layout], _WRITE_POLICY[cache.write_policy]


def ucx_transports(network: NetworkSpec) -> str:
    """UCX_TLS: as given, else what lets both one node (cuda_ipc) and several (rc with RDMA, else tcp) work."""
    if network.ucx_transports:
        return ",".join(network.ucx_transports)
    wants_rdma = bool(network.devices) or network.rdma_resource is not None
    return ",".join([*(["rc"] if wants_rdma else []), "cuda_copy", "cuda_ipc", "tcp"])


def _environment(spec: DSV4DeploymentSpec, release: Release, role: Role) -> list[EnvEntry]:
    role_spec = spec.prefill if role is Role.PREFILL else spec.decode
    owned = [
        # Used in argument expansion and in logs; the rank address that peers connect to is SGLANG_HOST_IP.
        EnvEntry("POD_NAME", field_path="metadata.name"),
        EnvEntry("POD_IP", field_path="status.podIP"),
        EnvEntry("SGLANG_HOST_IP", field_path="status.podIP"),
        EnvEntry("SGLANG_DISAGGREGATION_NIXL_BACKEND", spec.network.backend),
        EnvEntry("UCX_TLS", ucx_transports(spec.network)),
    ]
    token = spec.model.source.hugging_face.token_secret_ref if spec.model.source.hugging_face else None
    if token is not None:
        owned.append(EnvEntry("HF_TOKEN", secret=token))
    if role is Role.PREFILL and renders(EARLY_SEND, release):
        owned.append(EnvEntry(EARLY_SEND.name, "0"))
    if role is Role.PREFILL and spec.hi_cache.enabled and renders(UNIFIED_RADIX_TREE, release):
        owned.append(EnvEntry(UNIFIED_RADIX_TREE.name, "1"))
    if role is Role.DECODE and renders(DEFERRED_RELEASE, release):
        owned.append(EnvEntry(DEFERRED_RELEASE.name, "1"))
    index_k = guarded_index_k(spec, release)
    if index_k is not None:
        owned += [EnvEntry(PLUGINS.name, PLUGIN), EnvEntry(INDEX_K_ENV, index_k)]
    # What the operator owns wins over the user's, and the role's over the engine's; policy names what was shadowed.
    users = {v.name: EnvEntry(v.name, v.value, secret=v.secret_key_ref) for v in (*spec.engine.env, *role_spec.env)}
    merged = {entry.name: entry for entry in owned}
    merged.update({name: entry for name, entry in users.items() if name not in merged})
    return list(merged.values())
