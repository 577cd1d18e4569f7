"""Every rule of policy: a spec that it speaks of, one that it does not, the releases, and what it says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest

from crd_cases import merged, minimal
from dsv4_operator.api.v1alpha1 import DSV4DeploymentSpec, parse_deployment
from dsv4_operator.engine.images import Images
from dsv4_operator.engine.releases import KNOWN_RELEASES
from dsv4_operator.policy import RULES, RULES_BY_ID, Action, Finding, evaluate

Patch = dict[str, Any]


def spec_of(patch: Patch | None = None) -> DSV4DeploymentSpec:
    return parse_deployment(merged(minimal(), {"spec": patch or {}})).spec


def images_of(release: str) -> Images:
    return Images(engine=f"sglang:{release}", canary="canary:1", router="router:1")


def past_schema(**changes: Any) -> Any:
    """A spec as it could only be stored past the schema: the rule is the second line of defence."""

    def change(spec: DSV4DeploymentSpec) -> DSV4DeploymentSpec:
        return spec.model_copy(update={name: part(getattr(spec, name)) for name, part in changes.items()})

    return change


def on(**changes: Any) -> Any:
    return lambda part: part.model_copy(update=changes)


def args(*items: str, scope: str = "engine") -> Any:
    """Arguments that the schema would refuse."""
    return past_schema(**{scope: on(extra_args=list(items))})


def renamed(name: str, scope: str) -> Any:
    """A variable that the schema would refuse."""
    return past_schema(**{scope: lambda s: s.model_copy(update={"env": [s.env[0].model_copy(update={"name": name})]})})


def env(name: str, value: str = "1") -> list[Patch]:
    return [{"name": name, "value": value}]


@dataclass(frozen=True)
class Case:
    """`applies` and `silent` are patches of the minimal spec; `bend` alters the parsed spec of `applies`."""

    rule: str
    path: str
    applies: Patch
    silent: Patch
    release: str = "0.5.23"
    images: Images | None = None
    bend: Any = None
    says: tuple[str, ...] = ()

    def spec(self) -> DSV4DeploymentSpec:
        spec = spec_of(self.applies)
        return self.bend(spec) if self.bend else spec

    def found(self, release: str | None = None) -> list[Finding]:
        images = self.images or images_of(release or self.release)
        return self.at(evaluate(self.spec(), images))

    def at(self, findings: list[Finding]) -> list[Finding]:
        return [f for f in findings if f.rule == self.rule and f.path == self.path]

    def __str__(self) -> str:
        return f"{self.rule}-{self.path}"


EAGLE: Patch = {"algorithm": "EAGLE"}
DSPARK: Patch = {"algorithm": "DSPARK"}
HICACHE: Patch = {"enabled": True}
BF16: Patch = {"indexK": {"dtype": "BF16"}}
CHECKSUM: Patch = {"network": {"checksum": True}}
A8: Patch = {"parallelism": {"attentionData": 4}}

CASES = [
    # images.py
    Case("image-unset", "spec.engine.image", {}, {}, images=Images(None, "c:1", "r:1"), says=("defaults.engineImage",)),
    Case("image-unset", "spec.canary.image", {}, {"canary": {"enabled": False}}, images=Images("x:0.5.23", None, "r")),
    Case("image-unset", "spec.router.image", {}, {"router": {"enabled": False}}, images=Images("x:0.5.23", "c", "")),
    Case(
        "unknown-release",
        "spec.engine.release",
        {},
        {"engine": {"release": "0.5.23"}},
        images=Images("x:latest", "c:1", "r:1"),
        says=("x:latest", "set spec.engine.release", "0.5.23"),
    ),
    Case(
        "unknown-release",
        "spec.engine.release",
        {},
        {"engine": {"release": "0.5.23"}},
        images=Images("x:0.5.11", "c:1", "r:1"),
        says=("SGLang 0.5.11", "a newer operator"),
    ),
    Case(
        "moving-tag",
        "spec.engine.image",
        {"engine": {"release": "0.5.23"}},
        {},
        images=Images("x:latest", "c:1", "r:1"),
        says=("digest",),
    ),
    Case("release-not-recommended", "spec.engine.release", {}, {"engine": {"release": "0.5.21"}}, release="0.5.20"),
    # ownership.py
    Case(
        "owned-flag",
        "spec.engine.extraArgs[1]",
        {"engine": {"extraArgs": ["--log-level=debug", "--speculative-num-s=4"]}},
        {"engine": {"extraArgs": ["--log-level=debug", "--max-queued-requests", "4"]}},
        says=("--speculative-num-s sets --speculative-num-steps", "spec.engine.speculative.numSteps"),
    ),
    Case(
        "owned-flag",
        "spec.prefill.extraArgs[0]",
        {"prefill": {"extraArgs": ["--context-l=4096"]}},
        {"prefill": {"extraArgs": ["--log-level", "debug"]}},
        says=("--context-l sets --context-length", "spec.engine.contextLength"),
    ),
    Case(
        "owned-env",
        "spec.decode.env[0]",
        {"decode": {"env": env("A", "b")}},
        {"decode": {"env": env("A", "b")}},
        bend=renamed("UCX_TLS", "decode"),
        says=("UCX_TLS", "spec.network.ucxTransports"),
    ),
    *(
        Case("overlay-guarded-field", f"spec.prefill.podTemplate.{path}", {"prefill": {"podTemplate": overlay}}, {})
        for path, overlay in {
            "spec.hostNetwork": {"spec": {"hostNetwork": True}},
            "spec.terminationGracePeriodSeconds": {"spec": {"terminationGracePeriodSeconds": 1}},
            "spec.volumes[model]": {"spec": {"volumes": [{"name": "model"}]}},
            "spec.containers[engine].args": {"spec": {"containers": [{"name": "engine", "args": ["x"]}]}},
            "spec.containers[engine].env[UCX_TLS]": {
                "spec": {"containers": [{"name": "engine", "env": [{"name": "UCX_TLS", "value": "x"}]}]}
            },
            "spec.initContainers[canary]": {"spec": {"initContainers": [{"name": "canary", "image": "x"}]}},
            "metadata.labels[serving.dsv4.dev/role]": {"metadata": {"labels": {"serving.dsv4.dev/role": "x"}}},
        }.items()
    ),
    Case(
        "overlay-guarded-field",
        "spec.decode.podTemplate.spec.hostIPC",
        {"decode": {"podTemplate": {"spec": {"hostIPC": True}}}},
        {
            "decode": {
                "podTemplate": {
                    "metadata": {"labels": {"team": "a"}},
                    "spec": {"containers": [{"name": "engine", "resources": {}}], "volumes": [{"name": "scratch"}]},
                }
            }
        },
        says=("spec.network.hostIPC",),
    ),
    # strictness.py
    Case(
        "unknown-flag",
        "spec.engine.extraArgs[0]",
        {"engine": {"extraArgs": ["--max-queued-request-count", "5"]}},
        {"engine": {"extraArgs": ["--max-queued-requests", "5"]}},
        says=("--max-queued-request-count", "did you mean --max-queued-requests?"),
    ),
    Case(
        "unknown-flag",
        "spec.decode.extraArgs[0]",
        {"decode": {"extraArgs": ["--dsv4-attn-backend", "flashmla"]}},
        {},
        release="0.5.19",
        says=("SGLang 0.5.19 has no flag --dsv4-attn-backend", "0.5.20 and later"),
    ),
    Case(
        "deprecated-name",
        "spec.engine.env[0]",
        {"engine": {"env": env("SGLANG_OPT_SWA_RELEASE_LEAF_LOCK_AFTER_WINDOW")}},
        {"engine": {"env": env("SGLANG_HEALTH_CHECK_TIMEOUT", "60")}},
    ),
    Case(
        "abbreviated-flag",
        "spec.engine.extraArgs[0]",
        {"engine": {"extraArgs": ["--cuda-graph-max-bs", "64"]}},
        {"engine": {"extraArgs": ["--cuda-graph-max-bs-decode", "64"]}},
        says=("of --cuda-graph-max-bs-decode, --cuda-graph-max-bs-prefill", "write --cuda-graph-max-bs-decode, its"),
    ),
    Case(
        "abbreviated-flag",
        "spec.decode.extraArgs[0]",
        {"decode": {"extraArgs": ["--max-queued", "64"]}},
        {},
        says=("--max-queued-requests",),
    ),
    Case(
        "duplicate-flag",
        "spec.prefill.extraArgs[0]",
        {"engine": {"extraArgs": ["--log-level", "info"]}, "prefill": {"extraArgs": ["--log-level=debug"]}},
        {"decode": {"extraArgs": ["--log-level", "info"]}, "prefill": {"extraArgs": ["--log-level=debug"]}},
        says=("spec.engine.extraArgs[0]",),
    ),
    Case(
        "duplicate-flag",
        "spec.engine.extraArgs[3]",
        {"engine": {"extraArgs": ["--log-level", "info", "--trust-remote-code", "--log-level", "debug"]}},
        {"engine": {"extraArgs": ["--log-level", "info", "--trust-remote-code"]}},
    ),
    *(
        Case("flag-value", f"spec.engine.extraArgs[{index}]", {"engine": {"extraArgs": given}}, {}, says=(says,))
        for index, given, says in (
            (0, ["stray", "--trust-remote-code"], "no flag"),
            (0, ["-t"], "two dashes"),
            (1, ["--trust-remote-code", "--log-level"], "needs a value"),
            (0, ["--trust-remote-code", "yes"], "takes no value"),
            (0, ["--log-level", "info", "debug"], "takes one value"),
            (0, ["--max-queued-requests", "many"], "needs a number"),
            (0, ["--schedule-policy=whim"], "use one of dfs-weight"),
        )
    ),
    *(
        Case("test-variable", "spec.prefill.env[0]", {"prefill": {"env": env(name)}}, {}, says=(name,))
        for name in (
            "SGLANG_TEST_RETRACT",
            "SGLANG_SIMULATE_ACC_LEN",
            "SGLANG_RADIX_FORCE_MISS",
            "SGLANG_DEBUG_POISON_POOL",
            "SGLANG_IS_IN_CI",
        )
    ),
    Case(
        "unknown-variable",
        "spec.engine.env[0]",
        {"engine": {"env": env("SGLANG_HEALTH_CHECK_TIMEOUTS", "60")}},
        {"engine": {"env": env("SGLANG_HEALTH_CHECK_TIMEOUT", "60")}},
        says=("did you mean SGLANG_HEALTH_CHECK_TIMEOUT?",),
    ),
    Case(
        "unknown-variable",
        "spec.engine.env[0]",
        {"engine": {"env": env("SGLANG_NO_SUCH_THING")}},
        {"engine": {"env": env("NCCL_DEBUG", "WARN")}},
        says=("remove it",),
    ),
    Case(
        "dummy-weights",
        "spec.engine.extraArgs[0]",
        {"engine": {"extraArgs": ["--load-format", "dummy"]}},
        {"engine": {"extraArgs": ["--load-format", "safetensors"]}},
    ),
    # forbidden_kv.py and forbidden_serving.py: past the schema, or abbreviated
    *(
        Case(rule, "spec.engine.extraArgs[0]", {}, {}, bend=args(*given), release=release)
        for rule, given, release in (
            ("hicache-absolute-size", ["--hicache-size", "64"], "0.5.23"),
            ("hicache-absolute-size", ["--hicache-siz=64"], "0.5.23"),
            ("hicache-storage", ["--hicache-storage-backend", "file"], "0.5.23"),
            ("hisparse", ["--enable-hisparse"], "0.5.23"),
            ("decode-radix-cache", ["--disaggregation-decode-enable-radix-cache"], "0.5.23"),
            ("decode-kv-offload", ["--disaggregation-decode-enable-offload-kvcache"], "0.5.23"),
            ("page-size", ["--page-siz", "64"], "0.5.23"),
            ("kv-cache-dtype", ["--kv-cache-dtype", "bfloat16"], "0.5.23"),
            ("role-switch", ["--enable-pd-role-switch"], "0.5.23"),
            ("pipeline-parallel", ["--pp-size", "2"], "0.5.23"),
            ("retraction-backup", ["--disaggregation-decode-retraction-backup", "host_pool"], "0.5.20"),
            ("kv-allocation-policy", ["--disaggregation-decode-allocation-policy", "prefill_complete"], "0.5.23"),
            ("decode-host-receive", ["--disaggregation-decode-host-receive-threshold", "0.5"], "0.5.23"),
            ("unified-memory", ["--enable-unified-memory"], "0.5.23"),
            ("attention-backend-trtllm", ["--dsv4-attn-backend", "trtllm"], "0.5.23"),
            ("parser-flags", ["--tool-call-parser", "glm"], "0.5.23"),
            ("host-address", ["--host", "127.0.0.1"], "0.5.23"),
            ("multi-node-address", ["--dist-init-addr", "a:1"], "0.5.23"),
            ("attention-dp-flags", ["--dp-size", "8"], "0.5.23"),
            ("api-key-flag", ["--api-key=hunter2"], "0.5.23"),
            ("api-key-flag", ["--admin-api-k", "hunter2"], "0.5.23"),
            ("engine-tls", ["--ssl-keyfile", "x"], "0.5.23"),
            ("grpc-mode", ["--grpc-mode"], "0.5.23"),
            ("gpu-placement", ["--base-gpu-id", "4"], "0.5.23"),
            ("kv-checksum", ["--disaggregation-enable-kv-checksum"], "0.5.23"),
        )
    ),
    Case(
        "decode-radix-cache",
        "spec.decode.env[0]",
        {"decode": {"env": env("SGLANG_EXPERIMENTAL_DSV4_DECODE_RADIX_CACHE")}},
        {"decode": {"env": env("SGLANG_EXPERIMENTAL_DSV4_DECODE_RADIX_CACHE", "0")}},
    ),
    Case("grpc-mode", "spec.engine.env[0]", {"engine": {"env": env("SGLANG_RUST_SERVER")}}, {}),
    # values that are fine
    *(
        Case(rule, "spec.decode.extraArgs[0]", {}, {"decode": {"extraArgs": fine}}, bend=args(*bad, scope="decode"))
        for rule, bad, fine in (
            ("gpu-placement", ["--gpu-id-step", "2"], ["--base-gpu-id", "0", "--gpu-id-step=1"]),
            (
                "kv-allocation-policy",
                ["--disaggregation-decode-allocation-policy=prefill_complete"],
                ["--disaggregation-decode-allocation-policy", "early"],
            ),
            (
                "decode-host-receive",
                ["--disaggregation-decode-host-receive-threshold=0"],
                ["--disaggregation-decode-host-receive-threshold", "1"],
            ),
            ("attention-backend-trtllm", ["--dsv4-attn-backend=flashmla_mega"], ["--dsv4-attn-backend", "flashmla"]),
        )
    ),
    # transfer.py
    Case("early-send", "spec.prefill", {}, {"engine": {"release": "0.5.14"}}, says=("NIXL",)),
    Case(
        "early-send",
        "spec.prefill",
        {"hiCache": HICACHE},
        {"engine": {"release": "0.5.14"}},
        release="0.5.22",
        says=("still loading",),
    ),
    Case("nixl-minimum-release", "spec.engine.release", {}, {}, release="0.5.17", says=("0.5.18",)),
    Case("deferred-kv-release", "spec.decode", {}, {}, release="0.5.20"),
    Case("abort-page-reuse", "spec.engine.release", {}, {}, release="0.5.20"),
    Case("stale-bootstrap", "spec.engine.release", {}, {}, release="0.5.18"),
    Case(
        "nixl-silent-failure",
        "spec.decode.env",
        {"prefill": {"env": env("SGLANG_DISAGGREGATION_WAITING_TIMEOUT", "60")}},
        {"decode": {"env": env("SGLANG_DISAGGREGATION_WAITING_TIMEOUT", "60")}},
        release="0.5.19",
    ),
    Case(
        "early-read-done",
        "spec.prefill.env[0]",
        {"prefill": {"env": env("SGLANG_ENABLE_PREFILL_WAR_READ_DONE", "true")}},
        {"prefill": {"env": env("SGLANG_ENABLE_PREFILL_WAR_READ_DONE", "False")}},
    ),
    # hicache.py
    Case(
        "hicache-layout",
        "spec.hiCache.layout",
        {"hiCache": HICACHE},
        {"hiCache": {"enabled": True, "ioBackend": "Direct", "layout": "PageFirstDirect"}},
        bend=past_schema(hi_cache=on(layout="PageFirstDirect")),
        says=("Kernel", "PageFirstDirect"),
    ),
    *(
        Case(
            "hicache-write-policy",
            "spec.hiCache.writePolicy",
            {"hiCache": {"enabled": True, "writePolicy": policy}},
            {"hiCache": HICACHE},
        )
        for policy in ("WriteBack", "WriteThroughSelective")
    ),
    Case(
        "hicache-chunked-backup",
        "spec.hiCache.writePolicy",
        {"hiCache": HICACHE},
        {"hiCache": {"enabled": True, "writePolicy": "WriteBack"}},
        release="0.5.21",
    ),
    Case("hicache-deadlock", "spec.hiCache.enabled", {"hiCache": HICACHE}, {}, release="0.5.14"),
    Case("hicache-swa-report", "spec.hiCache.enabled", {"hiCache": HICACHE}, {}, release="0.5.16"),
    Case("hicache-looping-report", "spec.hiCache.enabled", {"hiCache": HICACHE}, {}, release="0.5.18"),
    Case(
        "hicache-speculation",
        "spec.engine.speculative.algorithm",
        {"hiCache": HICACHE, "engine": {"speculative": EAGLE}},
        {"hiCache": HICACHE},
        release="0.5.17",
    ),
    Case(
        "hicache-fp4-speculation",
        "spec.indexK.dtype",
        {"hiCache": HICACHE, "indexK": {"dtype": "FP4"}, "engine": {"speculative": EAGLE}},
        {"hiCache": HICACHE, "indexK": {"dtype": "FP8"}, "engine": {"speculative": EAGLE}},
    ),
    Case(
        "hicache-fp4-speculation",
        "spec.indexK.dtype",
        {"hiCache": HICACHE, "indexK": {"dtype": "FP4"}, "engine": {"speculative": DSPARK}},
        {"hiCache": {"enabled": False}, "indexK": {"dtype": "FP4"}, "engine": {"speculative": EAGLE}},
    ),
    Case(
        "hicache-fp4-speculation",
        "spec.indexK.dtype",
        {"hiCache": HICACHE, "indexK": {"dtype": "FP4"}, "engine": {"speculative": EAGLE}},
        {"hiCache": HICACHE, "indexK": {"dtype": "FP4"}},
    ),
    Case(
        "hicache-dspark-stall",
        "spec.engine.speculative.algorithm",
        {"hiCache": HICACHE, "engine": {"speculative": DSPARK}},
        {"hiCache": HICACHE, "engine": {"speculative": EAGLE}},
    ),
    Case("unified-radix-tree", "spec.hiCache.enabled", {"hiCache": HICACHE}, {}, release="0.5.20"),
    Case(
        "hicache-ratio-small",
        "spec.hiCache.ratio",
        {"hiCache": {"enabled": True, "ratio": "0.5"}},
        {"hiCache": {"enabled": True, "ratio": "1"}},
    ),
    Case(
        "hicache-memory",
        "spec.prefill.memory",
        {
            "hiCache": {"enabled": True, "ratio": "1"},
            "prefill": {"gpus": 8, "memory": "470Gi"},
            "accelerator": {"architecture": "SM103"},
        },
        {
            "hiCache": {"enabled": True, "ratio": "1"},
            "prefill": {"gpus": 8, "memory": "475Gi"},
            "accelerator": {"architecture": "SM103"},
        },
        says=("8 ranks x 55 GiB of host pool + 32 GiB sharedMemory = 474 GiB, but the limit is 470 GiB",),
    ),
    Case(
        "hicache-memory",
        "spec.prefill.memory",
        {
            "hiCache": {"enabled": True, "ratio": "1"},
            "prefill": {"gpus": 8, "memory": "1Gi"},
            "accelerator": {"architecture": "SM103"},
        },
        {"hiCache": HICACHE, "prefill": {"gpus": 8}, "accelerator": {"architecture": "SM103"}},
    ),
    Case(
        "hicache-memory-unset",
        "spec.prefill.memory",
        {"hiCache": HICACHE, "decode": {"memory": "2Ti"}},
        {"hiCache": HICACHE, "prefill": {"memory": "2Ti"}},
    ),
    Case(
        "hicache-sm120-direct-swa",
        "spec.engine.env[0]",
        {"hiCache": HICACHE, "engine": {"env": env("SGLANG_OPT_SM120_DIRECT_SWA_KV")}},
        {"engine": {"env": env("SGLANG_OPT_SM120_DIRECT_SWA_KV")}},
    ),
    # kv_format.py
    *(
        Case(
            "role-kv-mismatch",
            f"spec.{role}.extraArgs[0]",
            {role: {"extraArgs": given}},
            {"engine": {"extraArgs": given}},
            says=(f"set on {role} alone", "spec.engine.extraArgs"),
        )
        for role, given in (
            ("prefill", ["--speculative-draft-kv-cache-dtype", "bfloat16"]),
            ("decode", ["--dcp-size", "2"]),
            ("decode", ["--json-model-override-args={}"]),
            ("prefill", ["--chat-template", "x"]),
        )
    ),
    *(
        Case("role-kv-mismatch", "spec.decode.env[0]", {"decode": {"env": env(name)}}, {"engine": {"env": env(name)}})
        for name in (
            "SGLANG_DSV4_KV_LAYOUT",
            "SGLANG_DSV4_COMPRESS_STATE_DTYPE",
            "SGLANG_OPT_USE_ONLINE_COMPRESS",
            "SGLANG_DEFAULT_THINKING",
        )
    ),
    Case(
        "role-kv-mismatch",
        "spec.decode.extraArgs[0]",
        {"prefill": {"extraArgs": ["--dcp-size", "2"]}, "decode": {"extraArgs": ["--dcp-size", "2"]}},
        {"engine": {"extraArgs": ["--dcp-size", "2"]}},
        says=("for each role by itself",),
    ),
    Case("fp4-release", "spec.indexK.dtype", {"indexK": {"dtype": "FP4"}}, {}, release="0.5.12"),
    Case(
        "fp4-sm120-release",
        "spec.indexK.dtype",
        {"indexK": {"dtype": "FP4"}, "accelerator": {"architecture": "SM120"}},
        {"indexK": {"dtype": "FP4"}, "accelerator": {"architecture": "SM100"}},
        release="0.5.16",
    ),
    Case(
        "fp4-architecture",
        "spec.indexK.dtype",
        {"indexK": {"dtype": "FP4"}, "accelerator": {"architecture": "SM103"}},
        {"indexK": {"dtype": "FP4"}, "accelerator": {"architecture": "SM120"}},
    ),
    Case("fp4-accuracy", "spec.indexK.dtype", {"indexK": {"dtype": "FP4"}}, {}),
    # guard.py
    Case(
        "bf16-release",
        "spec.indexK.dtype",
        BF16,
        {},
        release="0.5.22",
        says=("0.5.17 and 0.5.23", "0.5.22 has others", "or FP8"),
    ),
    *(
        Case("bf16-indexer", path, BF16 | patch, patch)
        for path, patch in (
            ("spec.engine.extraArgs[0]", {"engine": {"extraArgs": ["--enable-nvidia-megakernel"]}}),
            ("spec.prefill.extraArgs[0]", {"prefill": {"extraArgs": ["--enable-hisparse"]}}),
            ("spec.prefill.extraArgs[0]", {"prefill": {"extraArgs": ["--enable-prefill-cp"]}}),
            ("spec.engine.env[0]", {"engine": {"env": env("SGLANG_OPT_USE_TILELANG_INDEXER")}}),
            ("spec.decode.env[0]", {"decode": {"env": env("SGLANG_OPT_USE_AITER_INDEXER")}}),
        )
    ),
    Case(
        "bf16-indexer",
        "spec.engine.env[0]",
        BF16 | {"engine": {"env": env("SGLANG_OPT_USE_TILELANG_INDEXER", "true")}},
        BF16 | {"engine": {"env": env("SGLANG_OPT_USE_TILELANG_INDEXER", "0")}},
    ),
    Case("bf16-model", "spec.model.id", BF16 | {"model": {"id": "DeepSeek-V4.1-Flash"}}, BF16, says=("allow",)),
    Case(
        "bf16-model",
        "spec.model.source.huggingFace.repo",
        BF16 | {"model": {"source": {"huggingFace": {"repo": "acme/DeepSeek-V4_1"}}}},
        BF16 | {"model": {"source": {"huggingFace": {"repo": "acme/DeepSeek-V4-128k"}}}},
    ),
    Case(
        "bf16-speculation",
        "spec.engine.speculative.algorithm",
        BF16 | {"engine": {"speculative": EAGLE}},
        {"engine": {"speculative": EAGLE}},
    ),
    Case("guard-required", "spec.indexK.dtype", BF16, {}, says=("SGLANG_PLUGINS=dsv4_guard", "_DTYPE=bf16", "marker")),
    Case("guard-required", "spec.network.checksum", CHECKSUM, {}, says=("DSV4_INDEX_K_DTYPE=fp8",)),
    Case(
        "guard-unchecked",
        "spec.canary.enabled",
        BF16 | {"canary": {"enabled": False}},
        {"canary": {"enabled": False}},
    ),
    Case(
        "live-counters",
        "spec.decode.extraArgs[0]",
        BF16 | {"decode": {"extraArgs": ["--tokenizer-worker-num", "4"]}},
        BF16 | {"decode": {"extraArgs": ["--tokenizer-worker-num", "1"]}},
        says=("--tokenizer-worker-num", "DSV4LiveToolCallCorruption cannot fire"),
    ),
    Case(
        "live-counters",
        "spec.engine.extraArgs[0]",
        BF16 | {"engine": {"extraArgs": ["--tokenizer-worker-num=2"]}},
        {"engine": {"extraArgs": ["--tokenizer-worker-num=2"]}},
    ),
    Case("kv-checksum", "spec.network.checksum", CHECKSUM, {}, release="0.5.22", says=("asserts", "0.5.23, or false")),
    Case("kv-checksum", "spec.network.checksum", CHECKSUM, {}, release="0.5.17", says=("came with 0.5.21",)),
    Case("kv-checksum", "spec.network.checksum", CHECKSUM | {"indexK": {"dtype": "FP4"}}, CHECKSUM),
    Case(
        "attention-backend-ignored",
        "spec.decode.extraArgs[0]",
        {"decode": {"extraArgs": ["--attention-backend", "flashinfer"]}},
        {"decode": {"extraArgs": ["--attention-backend", "dsv4"]}},
    ),
    # speculation.py
    Case(
        "dspark-release",
        "spec.engine.speculative.algorithm",
        {"engine": {"speculative": DSPARK}},
        {"engine": {"speculative": EAGLE}},
        release="0.5.15",
    ),
    Case(
        "dspark-attention-dp",
        "spec.decode.extraArgs",
        {"engine": {"speculative": DSPARK}, "decode": A8},
        {"engine": {"speculative": DSPARK, "extraArgs": ["--enable-dp-lm-head"]}, "decode": A8},
    ),
    Case(
        "dspark-attention-dp",
        "spec.engine.extraArgs[1]",
        {
            "engine": {"speculative": DSPARK, "extraArgs": ["--enable-dp-lm-head", "--moe-a2a-backend", "deepep"]},
            "decode": A8,
        },
        {
            "engine": {"speculative": DSPARK, "extraArgs": ["--enable-dp-lm-head", "--moe-a2a-backend", "megamoe"]},
            "decode": A8,
        },
    ),
    *(
        Case(
            "dspark-attention-dp",
            "spec.decode.extraArgs[1]",
            {"engine": {"speculative": DSPARK}, "decode": A8 | {"extraArgs": ["--enable-dp-lm-head", f"{flag}={bad}"]}},
            {
                "engine": {"speculative": DSPARK, "release": release},
                "decode": A8 | {"extraArgs": ["--enable-dp-lm-head", f"{flag}={fine}"]},
            },
            release=release,
            says=(f"use {' or '.join(taken)},",),
        )
        for flag in ("--moe-a2a-backend",)
        for release, bad, fine, taken in (
            ("0.5.17", "megamoe", "none", ("none",)),
            ("0.5.18", "mori", "megamoe", ("none", "megamoe")),
            ("0.5.20", "mori", "megamoe", ("none", "megamoe")),
            ("0.5.21", "deepep", "mori", ("none", "megamoe", "mori")),
        )
    ),
    Case(
        "dspark-attention-dp",
        "spec.decode.env[0]",
        {
            "engine": {"speculative": DSPARK, "extraArgs": ["--enable-dp-lm-head", "--moe-a2a-backend", "megamoe"]},
            "decode": A8 | {"env": env("SGLANG_RAGGED_VERIFY_MODE", "compact")},
        },
        {
            "engine": {"speculative": DSPARK, "extraArgs": ["--enable-dp-lm-head", "--moe-a2a-backend", "megamoe"]},
            "decode": A8 | {"env": env("SGLANG_RAGGED_VERIFY_MODE", "static")},
        },
    ),
    Case(
        "dspark-long-context",
        "spec.engine.contextLength",
        {"engine": {"speculative": DSPARK}},
        {"engine": {"speculative": DSPARK, "contextLength": 200000}},
    ),
    Case(
        "dspark-long-context",
        "spec.engine.contextLength",
        {"engine": {"speculative": DSPARK, "contextLength": 200001}},
        {"engine": {"speculative": EAGLE, "contextLength": 200001}},
    ),
    Case(
        "eagle-numbers",
        "spec.engine.speculative",
        {"engine": {"speculative": EAGLE}},
        {"engine": {"speculative": EAGLE | {"numSteps": 3, "eagleTopk": 1, "numDraftTokens": 4}}},
        says=("3 steps, top-k 1 and 4 draft tokens",),
    ),
    Case(
        "eagle-draft-tokens",
        "spec.engine.speculative.numDraftTokens",
        {"engine": {"speculative": EAGLE | {"numSteps": 2}}},
        {"engine": {"speculative": EAGLE | {"numSteps": 2, "numDraftTokens": 3}}},
        says=("4 to 3",),
    ),
    Case(
        "eagle-grammar", "spec.engine.speculative.algorithm", {"engine": {"speculative": EAGLE}}, {}, release="0.5.13"
    ),
    Case(
        "online-compress-speculation",
        "spec.engine.env[0]",
        {
            "engine": {"speculative": EAGLE, "env": env("SGLANG_OPT_USE_ONLINE_COMPRESS")},
            "prefill": {"env": env("SGLANG_EXPERIMENTAL_ONLINE_C128_MTP")},
        },
        {
            "engine": {"speculative": EAGLE, "env": env("SGLANG_OPT_USE_ONLINE_COMPRESS", "0")},
            "prefill": {"env": env("SGLANG_EXPERIMENTAL_ONLINE_C128_MTP")},
        },
    ),
    Case(
        "online-compress-speculation",
        "spec.engine.env[0]",
        {"engine": {"speculative": EAGLE, "env": env("SGLANG_OPT_USE_ONLINE_COMPRESS")}},
        {"engine": {"env": env("SGLANG_OPT_USE_ONLINE_COMPRESS")}},
    ),
    Case(
        "online-compress-speculation",
        "spec.engine.env[0]",
        {"engine": {"speculative": DSPARK, "env": env("SGLANG_OPT_USE_ONLINE_COMPRESS")}},
        {
            "engine": {
                "speculative": EAGLE,
                "env": env("SGLANG_OPT_USE_ONLINE_COMPRESS") + env("SGLANG_EXPERIMENTAL_ONLINE_C128_MTP"),
            }
        },
    ),
    # scheduling.py
    Case(
        "overlap-eagle-attention-dp",
        "spec.overlapSchedule",
        {"engine": {"speculative": EAGLE}, "decode": A8},
        {"engine": {"speculative": EAGLE}, "decode": A8, "overlapSchedule": "Enabled"},
    ),
    Case("overlap-release", "spec.overlapSchedule", {}, {"overlapSchedule": "Disabled"}, release="0.5.15"),
    Case(
        "overlap-release",
        "spec.overlapSchedule",
        {"engine": {"speculative": EAGLE}},
        {"engine": {"speculative": EAGLE}, "decode": A8},
        release="0.5.15",
        says=("here 0.5.15",),
    ),
    Case("overlap-release", "spec.overlapSchedule", {"decode": A8}, {"overlapSchedule": "Enabled"}, release="0.5.15"),
    Case(
        "overlap-forced",
        "spec.overlapSchedule",
        {"engine": {"speculative": EAGLE}, "decode": A8, "overlapSchedule": "Enabled"},
        {"engine": {"speculative": EAGLE}, "overlapSchedule": "Enabled"},
    ),
    Case("overlap-forced", "spec.overlapSchedule", {"overlapSchedule": "Enabled"}, {}, release="0.5.15"),
    Case(
        "decode-retraction",
        "spec.engine.maxRunningRequests",
        {"prefill": {"extraArgs": ["--num-reserved-decode-tokens", "2048"]}},
        {"decode": {"extraArgs": ["--num-reserved-decode-tokens", "2048"]}},
        release="0.5.20",
    ),
    Case("retraction-ends-request", "spec.decode", {}, {}, release="0.5.21"),
    Case(
        "context-length",
        "spec.engine.contextLength",
        {"engine": {"contextLength": 1048577}},
        {"engine": {"contextLength": 1048576}},
    ),
    Case(
        "context-length-override",
        "spec.engine.env[0]",
        {"engine": {"env": env("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN")}},
        {"engine": {"env": env("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "0")}},
    ),
    Case("dsml-parser", "spec.engine.release", {}, {}, release="0.5.20"),
    Case(
        "kv-canary-blind",
        "spec.engine.extraArgs[0]",
        {"engine": {"extraArgs": ["--kv-canary", "log"]}},
        {"engine": {"extraArgs": ["--kv-canary", "none"]}},
    ),
    Case("warmup-skipped", "spec.engine.extraArgs[0]", {"engine": {"extraArgs": ["--skip-server-warmup"]}}, {}),
    Case(
        "load-balance-method",
        "spec.prefill.extraArgs[0]",
        {"prefill": A8 | {"extraArgs": ["--load-balance-method", "round_robin"]}},
        {"prefill": {"extraArgs": ["--load-balance-method", "round_robin"]}},
    ),
    # topology.py
    Case(
        "tensor-ratio",
        "spec.decode.parallelism.tensor",
        {"prefill": {"gpus": 6}, "decode": {"gpus": 6}},
        # Attention groups are what is mapped: 8 ranks in one group against 6 in six.
        {"prefill": {"gpus": 8}, "decode": {"gpus": 6, "parallelism": {"attentionData": 6}}},
        bend=past_schema(decode=on(gpus=4)),
        says=("6", "4"),
    ),
    Case(
        "gpu-count",
        "spec.prefill.parallelism.tensor",
        {"prefill": {"gpus": 8, "parallelism": {"tensor": 4}}},
        {"prefill": {"gpus": 4, "nodes": 2, "parallelism": {"tensor": 8}}},
        says=("4", "8"),
    ),
    Case(
        "gpu-count",
        "spec.decode.parallelism.attentionData",
        {},
        {"decode": {"parallelism": {"attentionData": 2}}},
        bend=past_schema(decode=lambda d: d.model_copy(update={"parallelism": on(attention_data=3)(d.parallelism)})),
    ),
    Case(
        "sm120-experimental",
        "spec.accelerator.architecture",
        {"accelerator": {"architecture": "SM120"}},
        {"accelerator": {"architecture": "SM100"}},
    ),
    *(
        Case("prefill-context-parallel", "spec.prefill.extraArgs[0]", {"prefill": bad}, {"prefill": {"extraArgs": cp}})
        for cp, bad in (
            (["--enable-prefill-cp"], {"gpus": 16, "extraArgs": ["--enable-prefill-cp"]}),
            (["--enable-prefill-cp"], A8 | {"extraArgs": ["--enable-prefill-cp"]}),
            (
                ["--enable-prefill-cp", "--moe-a2a-backend", "deepep"],
                {"extraArgs": ["--enable-prefill-cp", "--moe-a2a-backend", "flashinfer"]},
            ),
            (
                ["--enable-prefill-cp", "--cp-strategy", "interleave"],
                {"extraArgs": ["--enable-prefill-cp", "--cp-strategy", "zigzag"]},
            ),
        )
    ),
    *(
        Case(
            "prefill-context-parallel",
            "spec.prefill.extraArgs[0]",
            {"prefill": {"extraArgs": ["--enable-prefill-cp", "--moe-a2a-backend", bad]}},
            {"prefill": {"extraArgs": ["--enable-prefill-cp", "--moe-a2a-backend", fine]}},
            release=release,
        )
        for release, bad, fine in (
            ("0.5.17", "mori", "megamoe"),
            ("0.5.18", "mori", "deepep"),
            ("0.5.19", "nixl", "mori"),
        )
    ),
    Case(
        "prefill-context-parallel",
        "spec.prefill.extraArgs[0]",
        {"prefill": A8 | {"extraArgs": ["--enable-nsa-prefill-context-parallel"]}},
        {"prefill": {"extraArgs": ["--enable-nsa-prefill-context-parallel", "--moe-a2a-backend", "mori"]}},
        release="0.5.16",
    ),
    Case(
        "context-parallel-quality",
        "spec.prefill.extraArgs[0]",
        {"prefill": {"extraArgs": ["--enable-prefill-cp"]}},
        {},
    ),
    Case(
        "shared-memory",
        "spec.decode.sharedMemory",
        {"decode": {"memory": "32Gi", "sharedMemory": "32Gi"}},
        {"decode": {"memory": "33Gi", "sharedMemory": "32Gi"}},
    ),
    # network.py
    Case(
        "ucx-without-cuda",
        "spec.network.ucxTransports",
        {"network": {"ucxTransports": ["tcp"]}},
        {"network": {"ucxTransports": ["tcp", "cuda_copy"]}},
    ),
    Case(
        "rdma-without-device",
        "spec.network.rdmaResource",
        {"network": {"devices": ["mlx5_0"]}},
        {"network": {"devices": ["mlx5_0"], "rdmaResource": {"name": "rdma/a"}}},
    ),
    Case(
        "rdma-without-device",
        "spec.network.rdmaResource",
        {"network": {"ucxTransports": ["rc", "cuda_copy"]}},
        {"network": {"ucxTransports": ["cuda_copy", "tcp"]}},
    ),
    Case(
        "nixl-device-conflict",
        "spec.engine.env[0]",
        {
            "network": {"devices": ["mlx5_0"]},
            "engine": {"env": env("SGLANG_DISAGGREGATION_NIXL_BACKEND_PARAMS", '{"device_list": "mlx5_1"}')},
        },
        {"engine": {"env": env("SGLANG_DISAGGREGATION_NIXL_BACKEND_PARAMS", '{"device_list": "mlx5_1"}')}},
    ),
    # availability.py
    Case(
        "not-built",
        "spec.network.computeDomain.mode",
        {"network": {"computeDomain": {"mode": "Create"}}},
        {"network": {"computeDomain": {"mode": "None"}}},
    ),
    Case("not-built", "spec.rollout.soak", {"rollout": {"soak": {}}}, {"rollout": {"drainSeconds": 1}}),
    *(
        Case("without-effect", path, applies, silent)
        for path, applies, silent in (
            (
                "spec.recovery",
                {"recovery": {"restartBudget": {"count": 1}}},
                {"recovery": {"restartBudget": {"count": 3}}},
            ),
            (
                "spec.hiCache.onCorruption",
                {"hiCache": {"onCorruption": "Alert"}},
                {"hiCache": {"onCorruption": "DisableHiCache"}},
            ),
            ("spec.canary.minimumAvailable", {"canary": {"minimumAvailable": 2}}, {"canary": {"minimumAvailable": 1}}),
            ("spec.rollout.autoRollback", {"rollout": {"autoRollback": False}}, {"rollout": {"autoRollback": True}}),
        )
    ),
    Case("canary-disabled", "spec.canary.enabled", {"canary": {"enabled": False}}, {}, says=("turn it on",)),
    Case(
        "canary-prompt-short",
        "spec.canary.promptTokens",
        {"canary": {"promptTokens": 2047}},
        {"canary": {"promptTokens": 2048}},
    ),
    # evaluate.py
    Case(
        "unknown-allowance",
        "spec.policy.allow",
        {"policy": {"allow": [{"rule": "hicache-fp4", "reason": "we like to live dangerously"}]}},
        {"policy": {"allow": [{"rule": "hicache-fp4-speculation", "reason": "we like to live dangerously"}]}},
        says=("hicache-fp4 is no rule", "did you mean hicache-fp4-speculation?"),
    ),
]

STANDING = {
    "nixl-minimum-release",
    "deferred-kv-release",
    "abort-page-reuse",
    "stale-bootstrap",
    "dsml-parser",
    "retraction-ends-request",
}
"""Rules that speak of every spec on their releases."""


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rule_applies(case: Case) -> None:
    rule = RULES_BY_ID[case.rule]
    (found,) = case.found()
    assert found.action is rule.action
    assert found.source == rule.source
    for part in case.says:
        assert part in found.message


@pytest.mark.parametrize("case", [case for case in CASES if case.rule not in STANDING], ids=str)
def test_rule_is_silent(case: Case) -> None:
    images = case.images if case.images and case.silent else images_of(case.release)
    assert case.at(evaluate(spec_of(case.silent), images)) == []


def test_every_rule_has_a_case() -> None:
    assert {case.rule for case in CASES} == {rule.id for rule in RULES}
    assert len({rule.id for rule in RULES}) == len(RULES) >= 35


# -- releases

EDGES: dict[str, tuple[str, str]] = {
    "release-not-recommended": ("0.5.12", "0.5.20"),
    "early-send": ("0.5.15", "0.5.23"),
    "nixl-minimum-release": ("0.5.12", "0.5.17"),
    "deferred-kv-release": ("0.5.19", "0.5.20"),
    "abort-page-reuse": ("0.5.12", "0.5.20"),
    "stale-bootstrap": ("0.5.12", "0.5.18"),
    "nixl-silent-failure": ("0.5.12", "0.5.19"),
    "early-read-done": ("0.5.18", "0.5.23"),
    "retraction-backup": ("0.5.18", "0.5.21"),
    "hicache-chunked-backup": ("0.5.12", "0.5.21"),
    "hicache-deadlock": ("0.5.12", "0.5.14"),
    "hicache-swa-report": ("0.5.16", "0.5.17"),
    "hicache-looping-report": ("0.5.17", "0.5.18"),
    "hicache-speculation": ("0.5.12", "0.5.17"),
    "hicache-dspark-stall": ("0.5.16", "0.5.23"),
    "unified-radix-tree": ("0.5.12", "0.5.20"),
    "fp4-release": ("0.5.12", "0.5.12"),
    "fp4-sm120-release": ("0.5.12", "0.5.16"),
    "nixl-device-conflict": ("0.5.23", "0.5.23"),
    "hicache-sm120-direct-swa": ("0.5.21", "0.5.23"),
    "dspark-release": ("0.5.12", "0.5.15"),
    "dspark-attention-dp": ("0.5.16", "0.5.23"),
    "dspark-long-context": ("0.5.16", "0.5.23"),
    "eagle-grammar": ("0.5.12", "0.5.13"),
    "overlap-release": ("0.5.12", "0.5.15"),
    "decode-retraction": ("0.5.12", "0.5.20"),
    "retraction-ends-request": ("0.5.21", "0.5.21"),
    "dsml-parser": ("0.5.12", "0.5.20"),
}
"""First and last known release on which the first case of a rule applies; others apply on all."""
ON: dict[str, set[str]] = {"bf16-release": set(KNOWN_RELEASES) - {"0.5.17", "0.5.23"}}
"""Where the releases are no range."""
BY_WHEEL = {"deprecated-name", "unknown-flag", "abbreviated-flag", "flag-value", "unknown-variable", "duplicate-flag"}
"""What they say follows from the flags of each release; see the cases above."""


@pytest.mark.parametrize("rule", sorted({case.rule for case in CASES if case.images is None} - BY_WHEEL))
def test_rule_speaks_of_its_releases_alone(rule: str) -> None:
    case = next(case for case in CASES if case.rule == rule)
    first, last = EDGES.get(rule, ("0.5.12", "0.5.23"))
    known = list(KNOWN_RELEASES)
    expected = ON.get(rule, set(known[known.index(first) : known.index(last) + 1]))
    assert {release for release in known if case.found(release)} == expected


# -- messages

REMEDY = (
    "use ",
    "set ",
    "remove",
    "turn ",
    "leave ",
    "make ",
    "pin ",
    "watch ",
    "build ",
    "delete ",
    "follow ",
    "write ",
    "keep ",
    "raise ",
    "change ",
    "end ",
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_message_says_field_why_and_remedy(case: Case) -> None:
    for finding in evaluate(case.spec(), case.images or images_of(case.release)):
        assert finding.path.startswith("spec.")
        assert len(finding.message) > 30
        assert finding.message[-1] not in ".; "
        assert "  " not in finding.message
        assert re.search(r"[,;][A-Za-z]", re.sub(r"\bUCX_\S+", "", finding.message)) is None, "a space is missing"
        assert finding.source
        assert "hunter2" not in finding.message, "values may be keys, and findings go into status and events"
        if finding.action is not Action.SET:
            remedy = finding.message.rpartition("; ")[2]
            assert any(word in remedy for word in REMEDY), finding.message
        if finding.action is Action.REFUSE:
            assert any(mark in finding.message for mark in (":", "; ", ",")), "no reason"
