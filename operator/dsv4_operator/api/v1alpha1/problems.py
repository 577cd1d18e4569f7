"""Validation errors of pydantic in the user's terms: the field, the value, what is wrong, why, what to do."""

from __future__ import annotations

import difflib
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from dsv4_operator.api.base import BROKEN_RULES
from dsv4_operator.api.constants import SHORT_NAME

_LONGEST_VALUE = 80

Location = tuple[int | str, ...]


def explain(error: ErrorDetails, model: type[BaseModel]) -> list[tuple[str, str]]:
    """(path, message) for one pydantic error of an object of `model`; several when several rules are broken."""
    location = error["loc"]
    if error["type"] == BROKEN_RULES:
        return [
            ((_path(location) + relative).removeprefix("."), message + _got(_value_at(error["input"], relative)))
            for relative, message in error["ctx"]["rules"]
        ]
    owner, field = _resolve(model, location)
    path = _path(location)
    if error["type"] == "extra_forbidden":
        return [(path, f"unknown field; {_spelling(str(location[-1]), owner)}")]
    if error["type"] == "missing":
        return [(path, f"required field is missing; add it.{_guide(field, location)}")]
    if error["input"] is None:
        return [(path, f"is null; remove the key to take its default, or set it.{_guide(field, location)}")]
    message = error["msg"].replace("Input should", "must", 1)
    if error["type"] == "string_pattern_mismatch":
        message = f"has a form that is not accepted, it must match {error['ctx']['pattern']}"
    return [(path, f"{message}{_got(error['input'])}.{_guide(field, location)}")]


def _path(location: Location) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path.removeprefix(".")


def _got(value: Any) -> str:
    """The value, when it is a single one; objects and lists are long, and may hold what is private."""
    if value is None or isinstance(value, dict | list):
        return ""
    text = repr(value)
    return f" (got {text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + '...'})"


def _value_at(value: Any, relative: str) -> Any:
    for name in filter(None, relative.split(".")):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _guide(field: FieldInfo | None, location: Location) -> str:
    """What the field is for, and where to read more."""
    fields = ".".join(str(part) for part in location if isinstance(part, str))
    purpose = "" if field is None or not field.description else " " + " ".join(field.description.split())
    return f"{purpose} See `kubectl explain {SHORT_NAME}.{fields}`"


def _spelling(name: str, owner: type[BaseModel] | None) -> str:
    if owner is None:
        return "remove it"
    known = {info.alias or attribute: info for attribute, info in owner.model_fields.items()}
    by_folded = {alias.replace("_", "").lower(): alias for alias in known}
    close = difflib.get_close_matches(name.replace("_", "").lower(), list(by_folded), n=1)
    if close:
        return f"did you mean {by_folded[close[0]]}? Else remove it"
    return f"remove it, or use one of {', '.join(known)}"


def _resolve(model: type[BaseModel], location: Location) -> tuple[type[BaseModel] | None, FieldInfo | None]:
    """The model that holds the last field of `location`, and that field; None where the location leaves our models."""
    owner: type[BaseModel] | None = model
    field: FieldInfo | None = None
    holder = owner
    for part in location:
        if isinstance(part, int):
            continue
        holder, field = owner, None
        if owner is None:
            break
        field = next((info for name, info in owner.model_fields.items() if part in (info.alias, name)), None)
        owner = None if field is None else _model_in(field.annotation)
    return holder, field


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model inside an annotation: itself, an optional one, or the items of a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for argument in get_args(annotation) if (found := _model_in(argument)) is not None), None)
