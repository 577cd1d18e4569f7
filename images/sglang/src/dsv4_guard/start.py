"""Start in one process: find out where we are, check the release, and install what belongs here, or end."""

from __future__ import annotations

import importlib
import logging
import sys
from typing import Any

from dsv4_guard import MARK, __version__, early_send, gates, marker, patching, settings
from dsv4_guard.live import tally
from dsv4_guard.refusal import GuardError, refuse
from dsv4_guard.releases import Release, choose
from dsv4_guard.settings import Settings
from dsv4_guard.transfer import checksum, deadline, digest, fence, handshake

log = logging.getLogger(MARK)
PROCESSES = {
    "run_scheduler_process": "scheduler",
    "run_detokenizer_process": "detokenizer",
    "run_data_parallel_controller_process": "controller",
}
"""Entry functions of SGLang's processes, which load plugins first thing. Anything else is the API process."""


def process_kind() -> str:
    """scheduler, detokenizer, controller or api: by the entry function that is on the stack."""
    frame = sys._getframe()
    while frame is not None:
        kind = PROCESSES.get(frame.f_code.co_name)
        if kind is not None:
            return kind
        frame = frame.f_back  # type: ignore[assignment]
    return "api"


def release_here(chosen: Settings) -> Release:
    """The data of the SGLang release in this environment."""
    try:
        from sglang.version import __version__ as version
    except ImportError as error:
        raise GuardError(f"target sglang.version: {error}") from error
    return choose(str(version), chosen.allow_untested_release)


def check(release: Release, chosen: Settings) -> None:
    """GuardError when something was asked for that would silently do nothing."""
    if not chosen.index_digest:
        return
    if release.has_checksum:
        raise GuardError(
            f"DSV4_GUARD_INDEX_DIGEST=1 does nothing on SGLang {release.version}; unset it and use "
            "--disaggregation-enable-kv-checksum, which covers more"
        )
    left_out = sorted(chosen.skip & {"checksum", "deadline"})
    if left_out:
        raise GuardError(
            f"DSV4_GUARD_INDEX_DIGEST=1 does nothing without what DSV4_GUARD_SKIP leaves out: {', '.join(left_out)}"
        )


def install(kind: str, release: Release, chosen: Settings) -> None:
    """Patch what this kind of process needs. Other plugins' hooks are in place by now, so ours are outermost."""
    complete = not chosen.skip
    if kind == "scheduler":
        if "gates" not in chosen.skip:
            gates.install(release, chosen.always_wait)
        if "early_send" not in chosen.skip:
            early_send.install(release)
        if "fence" not in chosen.skip:
            fence.install(release)
        if "deadline" not in chosen.skip:
            deadline.install(release, chosen.deadline)
        if "handshake" not in chosen.skip:
            handshake.install(release, chosen.index_k)
        if "checksum" not in chosen.skip:
            if release.has_checksum:
                checksum.install()
            elif chosen.index_digest:
                digest.install()
        marker.install_scheduler(release.version, chosen.index_k, complete)
    elif kind == "api":
        if "counters" not in chosen.skip:
            tally.install()
        marker.install_api(release.version, chosen.index_k, complete)
    patching.verify()
    log.warning("%s: %s installed in the %s process for SGLang %s", MARK, __version__, kind, release.version)


def bf16(stage: str, release: Release) -> None:
    """Hand over to the bf16 part: `install` before the hooks are applied, `verify` (where it exists) after."""
    part = importlib.import_module("dsv4_guard.bf16")
    function = getattr(part, stage, None)
    if function is not None:
        function(release.version)
    elif stage == "install":
        raise GuardError("target dsv4_guard.bf16.install: is not there")


def start() -> None:
    """Called by SGLang's plugin loader. Installs after every plugin's hooks are applied; SystemExit on any failure."""
    try:
        chosen = settings.read()
        kind = process_kind()
        release = release_here(chosen)
        check(release, chosen)
        if chosen.index_k == "bf16" and kind in ("scheduler", "api"):
            bf16("install", release)
        _after_hooks(kind, release, chosen)
    except GuardError as error:
        refuse(str(error))
    except Exception as error:
        refuse(f"{type(error).__name__}: {error}")


def _after_hooks(kind: str, release: Release, chosen: Settings) -> None:
    """Run `install` right after HookRegistry.apply_hooks, which load_plugins calls last."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    apply: Any = HookRegistry.apply_hooks

    def apply_hooks(cls: Any) -> None:
        HookRegistry.apply_hooks = apply
        apply()
        try:
            _check_hooks(cls)
            install(kind, release, chosen)
            if chosen.index_k == "bf16" and kind in ("scheduler", "api"):
                bf16("verify", release)
        except GuardError as error:
            refuse(str(error))
        except Exception as error:
            refuse(f"{type(error).__name__}: {error}")

    HookRegistry.apply_hooks = classmethod(apply_hooks)


def _check_hooks(registry: Any) -> None:
    """GuardError when a hook that we registered ourselves was not applied: the registry only logs that."""
    for target, hooks in sorted(registry._hooks.items()):
        if target not in registry._patched and _ours(hooks):
            raise GuardError(f"target {target}: the hook could not be applied, see the log above")


def _ours(hooks: list[Any]) -> bool:
    return any(source is not None and source.plugin_name == MARK for _, _, source in hooks)
