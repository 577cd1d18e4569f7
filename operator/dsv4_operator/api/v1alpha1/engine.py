"""Spec fields about the model, the engine and its caches."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from dsv4_operator.api.base import ApiModel, CelRule, ImageReference, ListMap, ObjectName
from dsv4_operator.api.v1alpha1.arguments import ArgList, EnvList, EnvVar, SecretKeyRef

__all__ = [
    "ArgList",
    "EngineSpec",
    "EnvList",
    "EnvVar",
    "HiCacheSpec",
    "HiCacheWritePolicy",
    "HostPathSource",
    "HuggingFaceSource",
    "IndexKDtype",
    "IndexKSpec",
    "LocalObjectReference",
    "ModelSource",
    "ModelSpec",
    "PersistentVolumeClaimSource",
    "SecretKeyRef",
    "SpeculativeAlgorithm",
    "SpeculativeSpec",
]


class LocalObjectReference(ApiModel):
    """The name of an object in the same namespace."""

    name: ObjectName
    """Name of the object."""


class PersistentVolumeClaimSource(ApiModel):
    """Weights on a claim, mounted read-only in every engine pod."""

    cel_rules = (
        CelRule(
            name="claim-path-stays-inside",
            rule="!has(self.path) || !self.path.split('/').exists(part, part == '..')",
            holds=lambda claim: ".." not in claim.path.split("/"),
            message="the path leaves the volume, and Kubernetes would refuse the pod; write it without '..'",
            field_path=".path",
        ),
    )

    claim_name: ObjectName
    """Claim in the same namespace; pods on several nodes need an access mode that allows it (ROX or RWX)."""
    path: Annotated[str, Field(max_length=1024, pattern=r"^[^/].*$|^$")] = ""
    """Directory of the checkpoint inside the volume, relative; empty for its root."""


class HostPathSource(ApiModel):
    """Weights on the node's own disk; the same path on every node."""

    cel_rules = (
        CelRule(
            name="host-path-is-plain",
            rule="!self.path.split('/').exists(part, part == '..')",
            holds=lambda host: ".." not in host.path.split("/"),
            message="Kubernetes refuses pods whose host path goes up with '..'; write the directory itself",
            field_path=".path",
        ),
    )

    path: Annotated[str, Field(min_length=2, max_length=4096, pattern=r"^/.+")]
    """Absolute path of the checkpoint directory."""


class HuggingFaceSource(ApiModel):
    """Weights fetched by the engine at start, or already in the cache."""

    repo: Annotated[str, Field(min_length=3, max_length=200, pattern=r"^[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+$")]
    """Repository, such as deepseek-ai/DeepSeek-V4."""
    revision: Annotated[str, Field(min_length=1, max_length=200)] = "main"
    """Branch, tag or commit. A commit is best: part of the KV fingerprint, it shows every change of weights."""
    token_secret_ref: SecretKeyRef | None = None
    """Access token, given to the engine as HF_TOKEN."""
    cache: LocalObjectReference | None = None
    """PersistentVolumeClaim for downloaded weights; without it every pod start downloads them again."""


class ModelSource(ApiModel):
    """Where the weights come from: exactly one of the three."""

    cel_rules = (
        CelRule(
            name="one-model-source",
            rule="[has(self.persistentVolumeClaim), has(self.hostPath), has(self.huggingFace)]"
            ".filter(given, given).size() == 1",
            holds=lambda source: (
                [source.persistent_volume_claim, source.host_path, source.hugging_face].count(None) == 2
            ),
            message="the weights come from one place: "
            "set exactly one of persistentVolumeClaim, hostPath and huggingFace",
        ),
    )

    persistent_volume_claim: PersistentVolumeClaimSource | None = None
    """Weights on a claim."""
    host_path: HostPathSource | None = None
    """Weights on the node's disk."""
    hugging_face: HuggingFaceSource | None = None
    """Weights fetched from a model hub."""


class ModelSpec(ApiModel):
    """What is served."""

    id: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9_./:@-]+$")]
    """Served model name, the one that clients send."""
    source: ModelSource
    """Where the weights come from."""


class SpeculativeAlgorithm(StrEnum):
    """Speculative decoding that SGLang allows for DeepSeek-V4."""

    NONE = "None"
    EAGLE = "EAGLE"
    DSPARK = "DSPARK"


class SpeculativeSpec(ApiModel):
    """Speculative decoding; the same on both roles."""

    cel_rules = (
        CelRule(
            name="eagle-fields",
            rule="self.algorithm == 'EAGLE'"
            " || !(has(self.numSteps) || has(self.eagleTopk) || has(self.numDraftTokens))",
            holds=lambda spec: (
                spec.algorithm is SpeculativeAlgorithm.EAGLE
                or (spec.num_steps, spec.eagle_topk, spec.num_draft_tokens) == (None, None, None)
            ),
            message="numSteps, eagleTopk and numDraftTokens mean nothing without EAGLE; "
            "set algorithm to EAGLE or remove them",
        ),
        CelRule(
            name="dspark-fields",
            rule="self.algorithm == 'DSPARK' || !(has(self.draftModelPath) || has(self.dsparkBlockSize))",
            holds=lambda spec: (
                spec.algorithm is SpeculativeAlgorithm.DSPARK
                or (spec.draft_model_path, spec.dspark_block_size) == (None, None)
            ),
            message="draftModelPath and dsparkBlockSize mean nothing without DSPARK; "
            "set algorithm to DSPARK or remove them",
        ),
    )

    algorithm: SpeculativeAlgorithm = SpeculativeAlgorithm.NONE
    """EAGLE (top-k 1) or DSPARK; everything else asserts for V4 in SGLang."""
    num_steps: Annotated[int, Field(ge=1, le=16)] | None = None
    """EAGLE: draft steps; 3 when unset (SGLang's automatic choice asserts for V4)."""
    eagle_topk: Annotated[int, Field(ge=1, le=1)] | None = None
    """EAGLE: top-k; V4 allows 1 alone."""
    num_draft_tokens: Annotated[int, Field(ge=1, le=64)] | None = None
    """EAGLE: draft tokens; 4 when unset."""
    draft_model_path: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """DSPARK: draft weights, when not in the checkpoint's own dspark folder."""
    dspark_block_size: Annotated[int, Field(ge=1, le=64)] | None = None
    """DSPARK: block size (SGLang 0.5.16 and later)."""


class EngineSpec(ApiModel):
    """The SGLang engine, the same on both roles."""

    image: ImageReference | None = None
    """Image with SGLang, NIXL and, for BF16 index-K, the gate plugin. Unset: the operator's default (a chart value)."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When to pull the images of the pods."""
    image_pull_secrets: Annotated[list[LocalObjectReference], Field(max_length=16), ListMap("name")] = []
    """Secrets for pulling images."""
    release: Annotated[str, Field(max_length=32, pattern=r"^[0-9]+\.[0-9]+\.[0-9]+(\.post[0-9]+)?$")] | None = None
    """SGLang release inside the image, such as 0.5.23. Unset: read from the image's tag."""
    context_length: Annotated[int, Field(ge=4096, le=4194304)] | None = None
    """Longest context in tokens; unset: the model's own."""
    mem_fraction_static: Annotated[str, Field(max_length=8, pattern=r"^0\.[0-9]{0,3}[1-9]0{0,3}$")] | None = None
    """Fraction of GPU memory for weights and KV pools, such as "0.85"; unset: SGLang's choice."""
    max_running_requests: Annotated[int, Field(ge=1, le=65536)] | None = None
    """Requests in a running batch; unset: SGLang's 256 for V4."""
    chunked_prefill_size: Annotated[int, Field(ge=256, le=1048576)] | None = None
    """Tokens of one prefill chunk; unset: SGLang's choice by GPU memory."""
    speculative: SpeculativeSpec = Field(default_factory=SpeculativeSpec)
    """Speculative decoding."""
    extra_args: ArgList = []
    """More command-line arguments of sglang.launch_server, both roles, one per item.

    Flags that the operator owns are refused by name."""
    env: EnvList = []
    """More environment variables, both roles. Variables that the operator owns are refused by name."""


class IndexKDtype(StrEnum):
    """Format of the sparse-attention index keys."""

    FP8 = "FP8"
    BF16 = "BF16"
    FP4 = "FP4"


class IndexKSpec(ApiModel):
    """The sparse-attention index keys (index-K)."""

    dtype: IndexKDtype = IndexKDtype.FP8
    """FP8: as upstream. BF16: better recall at long context, about 10 % more KV; needs the gated image.
    FP4: half the bytes (SGLang 0.5.13 and later)."""


class HiCacheWritePolicy(StrEnum):
    """When device pages are copied to the host (SGLang's --hicache-write-policy)."""

    WRITE_THROUGH = "WriteThrough"
    WRITE_THROUGH_SELECTIVE = "WriteThroughSelective"
    WRITE_BACK = "WriteBack"


_LAYOUTS_OF_BACKEND = {"Kernel": ("LayerFirst", "PageFirst"), "Direct": ("LayerFirst", "PageFirstDirect")}


class HiCacheSpec(ApiModel):
    """HiCache: a prefix cache in host memory, on prefill."""

    cel_rules = (
        CelRule(
            name="hicache-layout",
            # What the host pools of V4 take (SGLang 0.5.12 to 0.5.23); other pairs are rewritten or fail after loading.
            rule="self.ioBackend == 'Kernel' ? self.layout in ['LayerFirst', 'PageFirst']"
            " : self.layout in ['LayerFirst', 'PageFirstDirect']",
            holds=lambda cache: cache.layout in _LAYOUTS_OF_BACKEND[cache.io_backend],
            message="V4's host pools do not take this layout with this ioBackend, SGLang would change it or fail after "
            "loading; use Kernel with LayerFirst or PageFirst, or Direct with LayerFirst or PageFirstDirect",
            field_path=".layout",
        ),
    )

    enabled: bool = False
    """Keep evicted prefixes in host memory and load them back. Toggling it rolls prefill alone."""
    ratio: Annotated[str, Field(max_length=8, pattern=r"^([1-9][0-9]?(\.[0-9]{1,2})?|0\.([1-9][0-9]?|0[1-9]))$")] = "2"
    """Host pool as a multiple of the device pool, such as "2" or "1.5" (V4 refuses an absolute size).
    Ratio 2 at TP8 took about 950 GB on B300."""
    write_policy: HiCacheWritePolicy = HiCacheWritePolicy.WRITE_THROUGH
    """When pages are copied to the host."""
    io_backend: Literal["Kernel", "Direct"] = "Kernel"
    """How pages are copied."""
    layout: Literal["LayerFirst", "PageFirst", "PageFirstDirect"] = "PageFirst"
    """Host layout; V4 accepts Kernel with LayerFirst or PageFirst and Direct with LayerFirst or PageFirstDirect."""
    on_corruption: Literal["DisableHiCache", "Quarantine", "Alert"] = "DisableHiCache"
    """No effect yet, whatever its value. What to do when canaries prove corruption tied to reloaded prefixes."""
