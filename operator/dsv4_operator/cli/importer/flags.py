"""What each flag of a launch becomes: a field of the spec, an extra argument, or nothing, with a finding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dsv4_operator.api.constants import Role
from dsv4_operator.api.v1alpha1.arguments import ARGUMENT_RULES
from dsv4_operator.cli.importer.draft import RoleDraft, devices
from dsv4_operator.cli.importer.launch import FlagUse, Launch
from dsv4_operator.cli.importer.names import current_use
from dsv4_operator.cli.importer.rendered import rendered_flags
from dsv4_operator.engine.flags import owned_flag

Handler = Callable[[RoleDraft, FlagUse], None]

SPELLINGS: Final = {
    "--model": "--model-path",
    "--tp": "--tp-size",
    "--tensor-parallel-size": "--tp-size",
    "--ep": "--ep-size",
    "--expert-parallel-size": "--ep-size",
    "--dp": "--dp-size",
    "--data-parallel-size": "--dp-size",
    "--attention-data-parallel-size": "--attn-dp-size",
    "--pp": "--pp-size",
    "--pipeline-parallel-size": "--pp-size",
    "--nccl-init-addr": "--dist-init-addr",
    "--enable-hicache": "--enable-hierarchical-cache",
    "--speculative-algo": "--speculative-algorithm",
    "--speculative-draft-model": "--speculative-draft-model-path",
}
"""Other spellings of flags that have a field here."""

_OWNED: Final = {
    "--host": "pods listen on all addresses",
    "--port": "ports are fixed by role",
    "--disaggregation-bootstrap-port": "the bootstrap port is fixed",
    "--node-rank": "it follows from spec.<role>.nodes",
    "--dist-init-addr": "it follows from spec.<role>.nodes",
    "--enable-metrics": "always on",
    "--enable-metrics-for-all-schedulers": "on with attention data parallelism",
    "--enable-cache-report": "always on",
    "--base-gpu-id": "a pod has its GPUs to itself",
    "--gpu-id-step": "a pod has its GPUs to itself",
}
_FIXED: Final = {
    "--page-size": (("256",), "DeepSeek-V4 forces page size 256"),
    "--kv-cache-dtype": (("auto", "fp8_e4m3"), "DeepSeek-V4 keeps its packed FP8 layout"),
    "--tool-call-parser": (("deepseekv4",), "the parser belongs to the model"),
    "--reasoning-parser": (("deepseek-v4",), "the parser belongs to the model"),
    "--watchdog-timeout": (("300",), "the operator renders 300 seconds, so that a hung forward is noticed"),
}
"""Values that the operator renders whatever was given: accepted as they are, or said."""
_REFUSED: Final = {
    "--pp-size": "pipeline parallelism is not supported for DeepSeek-V4 here; spread over tensor and expert instead",
    "--hicache-size": "DeepSeek-V4 refuses an absolute size; use --hicache-ratio",
    "--hicache-storage-backend": "L3 storage corrupts DeepSeek-V4 (sgl-project/sglang #36179, #30760)",
    "--enable-hisparse": "HiSparse lowers scores of DeepSeek-V4 in PD (sgl-project/sglang #31482)",
    "--enable-pd-role-switch": "a pod keeps its role",
    "--disaggregation-decode-enable-radix-cache": "DeepSeek-V4 on CUDA refuses it",
    "--disaggregation-decode-enable-offload-kvcache": "DeepSeek-V4 refuses it",
}
_NEUTRAL: Final = {"--pp-size": "1", "--hicache-size": "0"}
_SECRETS: Final = {
    "--api-key": "spec.router.apiKeySecretRef: engines take no key",
    "--admin-api-key": "spec.router.apiKeySecretRef: engines take no key",
}
_CACHE_CHOICES: Final = {
    "--hicache-write-policy": (
        "spec.hiCache.writePolicy",
        {
            "write_through": "WriteThrough",
            "write_through_selective": "WriteThroughSelective",
            "write_back": "WriteBack",
        },
    ),
    "--hicache-io-backend": ("spec.hiCache.ioBackend", {"kernel": "Kernel", "direct": "Direct"}),
    "--hicache-mem-layout": (
        "spec.hiCache.layout",
        {"layer_first": "LayerFirst", "page_first": "PageFirst", "page_first_direct": "PageFirstDirect"},
    ),
}
_INTEGERS: Final = {
    "--context-length": "spec.engine.contextLength",
    "--max-running-requests": "spec.engine.maxRunningRequests",
    "--speculative-num-steps": "spec.engine.speculative.numSteps",
    "--speculative-eagle-topk": "spec.engine.speculative.eagleTopk",
    "--speculative-num-draft-tokens": "spec.engine.speculative.numDraftTokens",
    "--speculative-dspark-block-size": "spec.engine.speculative.dsparkBlockSize",
}
_OWN: Final = {
    "--tp-size": "tensor",
    "--ep-size": "parallelism.expert",
    "--dp-size": "dp",
    "--attn-dp-size": "parallelism.attentionData",
    "--nnodes": "nodes",
}
_ALGORITHMS: Final = ("EAGLE", "DSPARK")


def read_flags(launch: Launch, draft: RoleDraft) -> None:
    """Every flag of the launch, in order; each ends in a field, in extraArgs or in a finding."""
    seen: dict[str, FlagUse] = {}
    for given in launch.flags:
        known = SPELLINGS.get(given.flag, given.flag) in _HANDLERS
        current = given if known else current_use(draft, given)
        if current is None:
            continue  # said there
        name = SPELLINGS.get(current.flag, current.flag)
        if name in seen:
            draft.find("import-repeated", given.flag, "given more than once; the last one counts")
        seen[name] = FlagUse(name, current.values)
    for name, use in seen.items():
        _HANDLERS.get(name, _pass_through)(draft, use)
    _attention(draft, set(seen))


def _pass_through(draft: RoleDraft, use: FlagUse) -> None:
    rendered = rendered_flags(draft.release, draft.role).get(use.flag)
    if rendered is not None:
        if rendered == use.value:
            draft.find("import-owned", use.flag, "left out: the operator renders it itself")
        else:
            draft.find("import-changed", use.flag, f"{use.value} becomes {rendered}, which the operator renders")
        return
    owned = owned_flag(use.flag)
    if owned is not None and use.flag in (owned.name, *owned.aliases):
        draft.find(
            "import-owned", use.flag, f"left out: the operator owns it; use {owned.field}".replace("use nothing: ", "")
        )
        return
    for rule in ARGUMENT_RULES:
        if not rule.holds(use.flag):
            draft.find("import-unsupported", use.flag, f"left out: {rule.message}")
            return
    if draft.known(use.flag, use.value):
        draft.extra.append(use)
        draft.note(use, "extraArgs")


def _owned(draft: RoleDraft, use: FlagUse) -> None:
    draft.find("import-owned", use.flag, f"left out: {_OWNED[use.flag].replace('<role>', draft.role.value)}")


def _fixed(draft: RoleDraft, use: FlagUse) -> None:
    accepted, why = _FIXED[use.flag]
    if use.value in accepted:
        draft.find("import-default", use.flag, f"{use.value} is left out: {why}")
    else:
        draft.find("import-changed", use.flag, f"{use.value} becomes {accepted[0]}: {why}")


def _refused(draft: RoleDraft, use: FlagUse) -> None:
    if use.value == _NEUTRAL.get(use.flag, object()):
        draft.find("import-default", use.flag, f"{use.value} is left out: it is the default")
    else:
        draft.find("import-unsupported", use.flag, f"left out: {_REFUSED[use.flag]}")


def _secret(draft: RoleDraft, use: FlagUse) -> None:
    draft.find("import-secret", use.flag, f"left out, as it is a secret; use {_SECRETS[use.flag]}")


def _mode(draft: RoleDraft, use: FlagUse) -> None:
    if use.value == draft.role.value:
        draft.find("import-owned", use.flag, "left out: the role follows from the part of the spec")
    else:
        draft.find("import-role-conflict", use.flag, f"is {use.value}, but was given as the {draft.role.value} launch")


def _transfer(draft: RoleDraft, use: FlagUse) -> None:
    if use.value == "nixl":
        draft.share(use, "spec.network.transport", "NIXL")
        return
    message = (
        f"{use.value} becomes NIXL, the only transfer engine here: the image needs NIXL and UCX, and tuning of "
        f"{use.value} has no effect"
    )
    draft.find("import-transport", use.flag, message)


def _ib_device(draft: RoleDraft, use: FlagUse) -> None:
    found = devices(draft, use.flag, use.value)
    if found is not None:
        draft.share(use, "ib-device", found)


def _switch(path: str, value: bool | str) -> Handler:
    return lambda draft, use: draft.share(use, path, value)


def _integer(draft: RoleDraft, use: FlagUse) -> None:
    value = draft.integer(use)
    if value is not None:
        draft.share(use, _INTEGERS[use.flag], value)


def _chunk(draft: RoleDraft, use: FlagUse) -> None:
    if draft.role is Role.DECODE:
        draft.find("import-default", use.flag, f"{use.value} is left out: a decode engine prefills nothing")
        return
    value = draft.integer(use)
    if value is not None:
        draft.share(use, "spec.engine.chunkedPrefillSize", value)


def _fraction(path: str) -> Handler:
    def take(draft: RoleDraft, use: FlagUse) -> None:
        value = draft.fraction(use)
        if value is not None:
            draft.share(use, path, value)

    return take


def _text(path: str) -> Handler:
    def take(draft: RoleDraft, use: FlagUse) -> None:
        value = draft.text(use)
        if value is not None:
            draft.share(use, path, value)

    return take


def _own(draft: RoleDraft, use: FlagUse) -> None:
    value = draft.integer(use)
    if value is None:
        return
    if value < 1:
        draft.find("import-value", use.flag, f"{value} is less than 1")
        return
    draft.take(use, _OWN[use.flag], value)


def _dp_attention(draft: RoleDraft, use: FlagUse) -> None:
    draft.note(use, f"spec.{draft.role.value}.parallelism.attentionData")


def _attention(draft: RoleDraft, flags: set[str]) -> None:
    """--dp-size means attention groups with --enable-dp-attention, and whole copies of the model without."""
    copies = draft.own.pop("dp", None)
    if copies is None or copies == 1:
        return
    if "--enable-dp-attention" in flags:
        draft.own.setdefault("parallelism.attentionData", copies)
    else:
        message = (
            f"{copies} without --enable-dp-attention means {copies} whole engines in one server, which PD does not "
            f"do; left out: use spec.{draft.role.value}.replicas"
        )
        draft.find("import-unsupported", "--dp-size", message)


def _hicache(draft: RoleDraft, use: FlagUse) -> None:
    if draft.role is Role.DECODE:
        draft.find("import-unsupported", use.flag, "left out: HiCache is for prefill alone, decode refuses it for V4")
    elif use.flag == "--enable-hierarchical-cache":
        draft.share(use, "spec.hiCache.enabled", value=True)
    elif use.flag == "--hicache-ratio":
        _fraction("spec.hiCache.ratio")(draft, use)
    else:
        path, choices = _CACHE_CHOICES[use.flag]
        if not draft.known(use.flag, use.value):
            return
        if use.value in choices:
            draft.share(use, path, choices[use.value])
        else:
            message = f"{use.value} is not accepted for DeepSeek-V4; use one of {', '.join(choices)}"
            draft.find("import-unsupported", use.flag, message)


def _no_radix_cache(draft: RoleDraft, use: FlagUse) -> None:
    if draft.role is Role.DECODE:
        draft.find("import-default", use.flag, "left out: a decode engine of PD has no radix cache")
    else:
        draft.find("import-changed", use.flag, "left out: prefill reuses prefixes from now on")


def _algorithm(draft: RoleDraft, use: FlagUse) -> None:
    value = draft.text(use)
    if value is None:
        return
    if value.upper() in _ALGORITHMS:
        draft.share(use, "spec.engine.speculative.algorithm", value.upper())
    else:
        message = f"{value} asserts for DeepSeek-V4; use EAGLE with explicit numbers, or DSPARK"
        draft.find("import-unsupported", use.flag, message)


_HANDLERS: Final[dict[str, Handler]] = {
    **dict.fromkeys(_OWNED, _owned),
    **dict.fromkeys(_FIXED, _fixed),
    **dict.fromkeys(_REFUSED, _refused),
    **dict.fromkeys(_SECRETS, _secret),
    **dict.fromkeys(_INTEGERS, _integer),
    **dict.fromkeys(_OWN, _own),
    **dict.fromkeys(_CACHE_CHOICES, _hicache),
    "--enable-hierarchical-cache": _hicache,
    "--hicache-ratio": _hicache,
    "--disaggregation-mode": _mode,
    "--disaggregation-transfer-backend": _transfer,
    "--disaggregation-ib-device": _ib_device,
    "--disaggregation-enable-kv-checksum": _switch("spec.network.checksum", value=True),
    "--enable-deepseek-v4-fp4-indexer": _switch("spec.indexK.dtype", value="FP4"),
    "--disable-overlap-schedule": _switch("spec.overlapSchedule", value="Disabled"),
    "--enable-dp-attention": _dp_attention,
    "--disable-radix-cache": _no_radix_cache,
    "--chunked-prefill-size": _chunk,
    "--mem-fraction-static": _fraction("spec.engine.memFractionStatic"),
    "--speculative-algorithm": _algorithm,
    "--speculative-draft-model-path": _text("spec.engine.speculative.draftModelPath"),
    "--model-path": _text("model-path"),
    "--revision": _text("revision"),
    "--served-model-name": _text("spec.model.id"),
}
