"""What each variable of a launch becomes: a field of the spec, an entry of env, or nothing, with a finding."""

from __future__ import annotations

import re
from typing import Final

from dsv4_operator.api.v1alpha1.arguments import OWNED_VARIABLES
from dsv4_operator.api.v1alpha1.engine import IndexKDtype
from dsv4_operator.cli.importer.draft import RoleDraft, devices
from dsv4_operator.cli.importer.launch import FlagUse, Launch
from dsv4_operator.cli.importer.rendered import rendered_env
from dsv4_operator.engine.flags import OWNED_ENV
from dsv4_operator.engine.guard import PLUGIN
from dsv4_operator.engine.wheel import env_table, releases_with_env
from dsv4_operator.policy.strictness import TEST_VARIABLE_PREFIXES, TEST_VARIABLES

_SECRET: Final = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|API_?KEY|ACCESS_KEY|SECRET_KEY)$")
_HOST: Final = frozenset(
    {"PATH", "HOME", "USER", "PWD", "SHELL", "HOSTNAME", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "TMPDIR"}
)
_GPUS: Final = frozenset({"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"})
_FOREIGN: Final = (
    (re.compile(r"MC_\w+|MOONCAKE_\w+|SGLANG_MOONCAKE_\w+"), "Mooncake, and KV travels over NIXL"),
    (re.compile(r"MORI_\w+|SGLANG_MORI_\w+"), "MoRI, and KV travels over NIXL"),
    (re.compile(r"SGLANG_USE_AITER\w*|SGLANG_AITER_\w+|SGLANG_ROCM_\w+|HIP_\w+|HSA_\w+"), "AMD GPUs"),
    (re.compile(r"DYN_\w+"), "Dynamo's own frontend, which the operator's router replaces"),
)
_SAFE: Final = {
    "SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX": ("0", "false"),
    "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE": ("1", "true"),
}
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read_environment(launch: Launch, draft: RoleDraft) -> None:
    """Every variable of the launch, in order."""
    for name, value in launch.env.items():
        path = f"${name}"
        if not _NAME.fullmatch(name):
            draft.find("import-value", path, "is no name of an environment variable")
        elif name.startswith(TEST_VARIABLE_PREFIXES) or name in TEST_VARIABLES:
            message = "left out: it is for tests and simulation, and falsifies what is served"
            draft.find("import-test-variable", path, message)
        elif name in OWNED_VARIABLES or name in OWNED_ENV:
            _owned(draft, name, value)
        elif _SECRET.search(name):
            message = "left out, as it looks like a secret; put it in a Secret and use secretKeyRef in spec.engine.env"
            draft.find("import-secret", path, message)
        elif name in _GPUS:
            message = "left out: a pod has the GPUs that the device plugin gives it, and this would bypass it"
            draft.find("import-owned", path, message)
        elif name in _HOST:
            draft.find("import-foreign", path, "left out: it belongs to the host where the script ran")
        else:
            _other(draft, name, value)


def _owned(draft: RoleDraft, name: str, value: str) -> None:
    path = f"${name}"
    use = FlagUse(path, (value,))
    if name == "HF_TOKEN":
        message = "left out, as it is a secret; put it in a Secret and use spec.model.source.huggingFace.tokenSecretRef"
        draft.find("import-secret", path, message)
    elif name == "UCX_NET_DEVICES":
        found = devices(draft, path, value)
        if found is not None:
            draft.share(use, "ucx-devices", found)
    elif name == "UCX_TLS":
        _transports(draft, use)
    elif name == "SGLANG_DISAGGREGATION_NIXL_BACKEND":
        if value.upper() == "UCX":
            draft.share(use, "spec.network.backend", "UCX")
        else:
            draft.find("import-changed", path, f"{value} becomes UCX, the only NIXL backend here")
    elif name in _SAFE and value.lower() not in _SAFE[name]:
        draft.find("import-changed", path, f"{value} becomes {_SAFE[name][0]}: the other value corrupts answers")
    elif name == "DSV4_INDEX_K_DTYPE":
        _index_k(draft, use, value)
    elif name == "SGLANG_PLUGINS" and value != PLUGIN:
        draft.find("import-changed", path, "left out: plugins follow from spec.indexK.dtype and spec.network.checksum")
    else:
        draft.find("import-owned", path, "left out: the operator sets it for each pod")


def _index_k(draft: RoleDraft, use: FlagUse, value: str) -> None:
    if not draft.known(use.flag, value):
        return
    if value.upper() in set(IndexKDtype):
        draft.share(use, "spec.indexK.dtype", value.upper())
    else:
        draft.find("import-unsupported", use.flag, f"{value!r} is no format of index keys; use fp8, bf16 or fp4")


def _transports(draft: RoleDraft, use: FlagUse) -> None:
    if not draft.known(use.flag, use.value):
        return
    found = list(dict.fromkeys(item.strip() for item in use.value.split(",") if item.strip()))
    if found and all(re.fullmatch(r"[a-z0-9_]+", item) for item in found):
        draft.share(use, "spec.network.ucxTransports", found)
    else:
        draft.find("import-unsupported", use.flag, f"{use.value!r} is no plain list of UCX transports; name them")


def _other(draft: RoleDraft, name: str, value: str) -> None:
    path = f"${name}"
    owner = next((owner for pattern, owner in _FOREIGN if pattern.fullmatch(name)), None)
    if owner is not None:
        draft.find("import-foreign", path, f"left out: it belongs to {owner}")
        return
    rendered = rendered_env(draft.release, draft.role)
    if name in rendered:
        if rendered[name] in (None, value):
            draft.find("import-owned", path, "left out: the operator sets it itself")
        else:
            draft.find("import-changed", path, f"{value} becomes {rendered[name]}, which the operator sets")
        return
    if not draft.known(path, value):
        return
    if name.startswith(("SGLANG_", "SGL_")) and not _is_read(draft, path, name):
        return
    draft.env[name] = value
    draft.note(FlagUse(path, (value,)), "env")


def _is_read(draft: RoleDraft, path: str, name: str) -> bool:
    """Whether a variable of SGLang goes on; a finding where the target release does not read it."""
    variable = env_table(draft.release).get(name)
    if variable is not None and not variable.retired:
        return True
    releases = releases_with_env(name)
    if variable is not None or releases is not None:
        instead = f"; it is called {variable.use} now" if variable is not None and variable.use else ""
        were = f", only {releases} did" if releases is not None else ""
        message = f"left out: SGLang {draft.release} does not read it{were}{instead}"
        draft.find("import-no-effect", path, message)
        return False
    message = "kept, but no SGLang release known here reads it; a fork or a plugin may, else remove it"
    draft.find("import-no-effect", path, message)
    return True
