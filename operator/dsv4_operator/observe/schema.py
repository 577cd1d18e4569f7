"""What the installed CRD lacks. Helm leaves old CRDs behind, and the API server prunes new fields without a word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def missing_fields(installed: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Paths of fields that `wanted` knows and `installed` prunes; both are `openAPIV3Schema` objects."""
    return list(_missing(installed, wanted, ""))


def installed_schema(crd: Mapping[str, Any], version: str) -> Mapping[str, Any] | None:
    """The schema of one served version of an installed CRD; None when that version is not served."""
    for served in crd["spec"].get("versions", []):
        if served["name"] == version and served.get("served"):
            schema: Mapping[str, Any] = (served.get("schema") or {}).get("openAPIV3Schema") or {}
            return schema
    return None


def _missing(installed: Mapping[str, Any], wanted: Mapping[str, Any], path: str) -> Iterator[str]:
    if installed.get("x-kubernetes-preserve-unknown-fields"):
        return
    if "items" in wanted:
        yield from _missing(installed.get("items") or {}, wanted["items"], f"{path}[]")
    known = installed.get("properties") or {}
    for name, schema in (wanted.get("properties") or {}).items():
        here = f"{path}.{name}" if path else name
        if name not in known:
            yield here
        else:
            yield from _missing(known[name], schema, here)
