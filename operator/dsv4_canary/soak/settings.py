"""What a soak is told. Pure: checks values, no I/O. Errors are one line: field, value, why, remedy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit


class SettingsError(ValueError):
    """Bad input; the text is one line for the user."""


class Stream(StrEnum):
    """Whether replies are asked for as a stream."""

    MIX = "mix"
    ALWAYS = "always"
    NEVER = "never"


class Thinking(StrEnum):
    """Whether the chat template is told to reason: SERVER sends nothing, which any endpoint understands."""

    SERVER = "server"
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class SoakSettings:
    """One soak. The fields up to ``thinking`` decide what is asked; a resumed run must have the same."""

    endpoint: str
    """Base URL without a trailing slash and without ``/v1``."""
    tag: str
    model: str
    sessions: int = 80
    rounds: int = 4
    ctx: int = 300
    """Words of new context that each round brings."""
    shared_ctx: int = 2600
    """Words of the prefix that sessions of one group share."""
    share: int = 8
    """Sessions per shared prefix; every fourth group shares nothing."""
    max_tokens: int = 2500
    timeout: float = 180.0
    """Seconds per request, from sending to the last byte."""
    seed: int = 0
    stream: Stream = Stream.MIX
    baseline: int = 8
    """Sessions of the sequential baseline."""
    thinking: Thinking = Thinking.SERVER
    concurrency: int = 80
    reask: int = 20
    """Corrupted replies that are asked again alone, at most."""
    give_up: int = 160
    """Requests in a row without a reply after which the endpoint is given up; 0: never."""
    max_failed: float = 10.0
    """Percent of requests without a reply above which a run without corruption proves nothing."""

    def header(self) -> dict[str, Any]:
        """JSON form, the first line of a journal and part of the report. Holds no secret."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}

    def differs(self, header: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
        """First field of what is asked that differs from a journal's: (name, journal's value, this one's)."""
        for name in ASKED:
            if header.get(name) != (mine := _plain(getattr(self, name))):
                return name, header.get(name), mine
        return None


ASKED = tuple(
    field.name for field in fields(SoakSettings) if field.name not in ("concurrency", "reask", "give_up", "max_failed")
)
"""Fields that must not change when a run is resumed."""

_TAG_RE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

_RANGES: dict[str, tuple[float, float, str]] = {
    "sessions": (1, 10_000, "sessions"),
    "rounds": (1, 100, "rounds"),
    "ctx": (0, 100_000, "words"),
    "shared_ctx": (0, 500_000, "words"),
    "share": (1, 10_000, "sessions"),
    "max_tokens": (16, 1_000_000, "tokens"),
    "timeout": (0.1, 86_400, "seconds"),
    "seed": (0, 2**63 - 1, "a number"),
    "baseline": (0, 1000, "sessions"),
    "concurrency": (1, 10_000, "sessions"),
    "reask": (0, 10_000, "replies"),
    "give_up": (0, 1_000_000, "requests"),
    "max_failed": (0, 100, "percent"),
}


def option(name: str) -> str:
    """Command line spelling of a field."""
    return "--" + name.replace("_", "-")


def check(settings: SoakSettings) -> SoakSettings:
    """Return the settings when all values are usable. Raises SettingsError."""
    for name, (low, high, unit) in _RANGES.items():
        value = getattr(settings, name)
        if not low <= value <= high:  # also refuses NaN
            raise SettingsError(f"{option(name)} = {value}: out of range; give {low:g} to {high:g} ({unit})")
    if not _TAG_RE.fullmatch(settings.tag):
        raise SettingsError(
            f"--tag = {settings.tag!r}: becomes a file name; give 1 to 64 letters, digits, '.', '_' or '-', "
            "a letter or digit first"
        )
    return settings


def parse_endpoint(text: str) -> str:
    """Base URL of an endpoint. Raises SettingsError."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise SettingsError(f"--endpoint = {text!r}: is no URL ({error}); give http://HOST:PORT") from None
    if parts.username is not None or parts.password is not None:
        # The endpoint goes into the report: never echo it here either.
        raise SettingsError(
            "--endpoint: holds a user name or password, which would go into the report; give the URL without, "
            "and a key by --api-key-env"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or (port is not None and port == 0):
        raise SettingsError(f"--endpoint = {text!r}: is no http or https URL; give http://HOST:PORT")
    if parts.query or parts.fragment:
        raise SettingsError(f"--endpoint = {text!r}: has a query or fragment; give http://HOST:PORT")
    return text.rstrip("/").removesuffix("/v1").rstrip("/")


def settings_from_header(header: Mapping[str, Any]) -> SoakSettings:
    """Settings back from their JSON form. Raises SettingsError when it is none."""
    try:
        values = {field.name: header[field.name] for field in fields(SoakSettings)}
    except KeyError as error:
        raise SettingsError(f"settings.{error.args[0]}: is missing") from None
    for name, value in values.items():
        wanted = str if name in ("endpoint", "tag", "model", "stream", "thinking") else (int, float)
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise SettingsError(f"settings.{name} = {value!r}: has the wrong type")
    try:
        values["stream"], values["thinking"] = Stream(values["stream"]), Thinking(values["thinking"])
    except ValueError as error:
        raise SettingsError(f"settings: {error}") from None
    return check(SoakSettings(**values))


def _plain(value: object) -> object:
    return value.value if isinstance(value, StrEnum) else value
