"""What one role's launch became, before the roles are brought together."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from dsv4_operator.api.constants import Role
from dsv4_operator.cli.importer.launch import FlagUse, finding, placeholder
from dsv4_operator.engine.releases import Release
from dsv4_operator.policy import Finding

_FIELDS: Final = {
    "model-path": "spec.model.source",
    "revision": "spec.model.source.huggingFace.revision",
    "ib-device": "spec.network.devices",
    "ucx-devices": "spec.network.devices",
    "tensor": "gpus",
    "dp": "parallelism.attentionData",
}
"""Where values end that do not go straight into a field."""


@dataclass(slots=True)
class RoleDraft:
    """One role: `shared` are values that both roles must agree on, `own` are fields of the role itself.

    Keys are paths of spec fields, without the role for `own`. `extra` and `env` pass through.
    """

    role: Role
    release: Release
    shared: dict[str, Any] = field(default_factory=dict)
    own: dict[str, int] = field(default_factory=dict)
    extra: list[FlagUse] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    mapped: list[tuple[str, str]] = field(default_factory=list)

    def path(self, name: str) -> str:
        """How findings name a flag or variable of this role."""
        return f"{self.role.value}: {name}"

    def find(self, rule: str, name: str, message: str, source: str = "") -> None:
        """Add a finding on one flag or variable."""
        self.findings.append(finding(rule, self.path(name), message, source))

    def share(self, use: FlagUse, path: str, value: Any) -> None:
        """Take a value for a field that both roles share."""
        self.shared[path] = value
        self.note(use, _FIELDS.get(path, path))

    def take(self, use: FlagUse, path: str, value: int) -> None:
        """Take a value for a field of this role."""
        self.own[path] = value
        self.note(use, f"spec.{self.role.value}.{_FIELDS.get(path, path)}")

    def note(self, use: FlagUse, target: str) -> None:
        """Say where a flag or variable went."""
        self.mapped.append((self.path(f"{use.flag} {use.value}".strip()), target))

    # -- reading values; None says that a finding was made

    def known(self, name: str, value: str) -> bool:
        """Whether the value is known; a finding where it is a placeholder."""
        unknown = placeholder(value)
        if unknown is not None:
            variable = re.fullmatch(r"<\$([A-Za-z_][A-Za-z0-9_]*)>", unknown)
            define = f", with --define {variable.group(1)}=VALUE" if variable else ""
            self.find("import-placeholder", name, f"{unknown} is not known; put in the real value{define}")
        return unknown is None

    def integer(self, use: FlagUse) -> int | None:
        """The value as a whole number."""
        if not self.known(use.flag, use.value):
            return None
        if re.fullmatch(r"-?\d+", use.value):
            return int(use.value)
        self.find("import-value", use.flag, f"{use.value!r} is no whole number; write it out")
        return None

    def fraction(self, use: FlagUse) -> str | None:
        """The value as a decimal number, written plainly."""
        if not self.known(use.flag, use.value):
            return None
        try:
            number = Decimal(use.value)
        except InvalidOperation:
            number = Decimal("NaN")
        if not number.is_finite():
            self.find("import-value", use.flag, f"{use.value!r} is no number")
            return None
        return format(number.normalize(), "f")

    def text(self, use: FlagUse) -> str | None:
        """The value as text, never empty."""
        if not self.known(use.flag, use.value):
            return None
        if not use.value:
            self.find("import-value", use.flag, "has no value")
            return None
        return use.value


HCA: Final = re.compile(r"[A-Za-z0-9_.-]+")


def devices(draft: RoleDraft, name: str, value: str) -> list[str] | None:
    """HCA names from a comma list, without ports; None with a finding where it is something else."""
    if not draft.known(name, value):
        return None
    if value.strip().startswith("{") or value.endswith(".json"):
        message = "a list of devices for each GPU cannot be expressed; name the devices that all GPUs may use"
        draft.find("import-unsupported", name, message)
        return None
    found = [item.strip().split(":", 1)[0] for item in value.split(",") if item.strip()]
    if not found or not all(HCA.fullmatch(item) for item in found):
        draft.find("import-value", name, f"{value!r} is no list of device names")
        return None
    return list(dict.fromkeys(found))
