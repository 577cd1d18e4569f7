"""What the operator renders by itself, whatever the spec: it must not stand in extraArgs or env as well."""

from __future__ import annotations

from functools import cache
from typing import Final

from dsv4_operator.api.constants import Role
from dsv4_operator.api.v1alpha1.spec import DSV4DeploymentSpec
from dsv4_operator.cli.importer.arguments import split_arguments
from dsv4_operator.engine.command import render_command
from dsv4_operator.engine.releases import Release

_MODEL: Final = {"id": "m", "source": {"huggingFace": {"repo": "a/b"}}}
_ROLE: Final = {"nodes": 2, "parallelism": {"attentionData": 2}}
_SPECS: Final = (
    {"model": _MODEL},
    {"model": _MODEL, "hiCache": {"enabled": True}, "prefill": _ROLE, "decode": _ROLE},
)
"""With and without the fields that bring flags of their own."""


@cache
def rendered_flags(release: Release, role: Role) -> dict[str, str]:
    """Flags and their values."""
    found: dict[str, str] = {}
    for spec in _SPECS:
        argv = render_command(DSV4DeploymentSpec.model_validate(spec), release, role).argv
        flags, _ = split_arguments(argv[argv.index("sglang.launch_server") + 1 :])
        found |= {use.flag: use.value for use in flags if use.flag not in found}
    return found


@cache
def rendered_env(release: Release, role: Role) -> dict[str, str | None]:
    """Variables and their values, None for those that differ from pod to pod."""
    found: dict[str, str | None] = {}
    for spec in _SPECS:
        env = render_command(DSV4DeploymentSpec.model_validate(spec), release, role).env
        found |= {entry.name: entry.value for entry in env if entry.name not in found}
    return found
