"""Settings of the sidecar: parsing and checking of the settings file and the environment. Pure.

The settings file is shared by all pods of a deployment and may change under a running sidecar; the
environment is the pod's own and is fixed. Every error names the variable or field, the value, why it is
refused, and the remedy.
"""

from __future__ import annotations

import ipaddress
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from dsv4_canary.model import Role

DEFAULT_CONFIG_PATH = "/etc/dsv4-canary/canary.json"
SETTINGS_VERSION = 1
GUARD_FORMATS = ("bf16", "fp8")
TOKENS_PER_INTERVAL = 2.3
"""Default budget: so many times ``promptTokens`` an interval, 11,960 a minute with the other defaults."""
_MAX_SHOWN = 80


class SettingsError(ValueError):
    """A setting is missing or wrong. ``str()`` is one line for the person who must repair it."""

    def __init__(self, name: str, value: object, why: str, remedy: str) -> None:
        shown = "not set" if value is None else repr(value)
        if len(shown) > _MAX_SHOWN:
            shown = shown[:_MAX_SHOWN] + "..."
        self.name, self.why = name, why
        super().__init__(f"{name} = {shown}: {why}; {remedy}")


@dataclass(frozen=True, slots=True)
class Settings:
    """Content of the settings file. Durations in seconds."""

    model: str
    interval: float
    timeout: float
    failure_threshold: int
    prompt_tokens: int
    wedge: float
    """How long work may wait in an engine without any movement until it counts as wedged."""
    tokens_per_minute: float
    """Tokens, prompts and answers, that the probes of this pod may cost while it is Ready and nothing is wrong."""

    @property
    def absence(self) -> float:
        """How long a ready pod may go without any usable peer before its readiness is withdrawn."""
        return self.failure_threshold * self.interval


@dataclass(frozen=True, slots=True)
class Environment:
    """What the pod tells its sidecar."""

    role: Role
    listen_port: int
    engine_url: str
    peer_host: str
    peer_port: int
    bootstrap_port: int
    fingerprint: str
    pod_name: str
    pod_namespace: str
    pod_uid: str
    pod_ip: str
    engine_dead: float
    """Seconds of refused connections, after the engine was alive once, until ``/livez`` turns false."""
    config_path: str
    require_guard: str | None = None
    """Index-K format that the engine's guard must show; None: no guard is required."""


_NUMBERS: tuple[tuple[str, float, float, float, bool], ...] = (
    # field, default, least, most, whole number only
    ("intervalSeconds", 30, 1, 86_400, False),
    ("timeoutSeconds", 60, 1, 3_600, False),
    ("failureThreshold", 3, 1, 100, True),
    # Below about 2,048 tokens every index key is selected and corruption of index-K cannot show, but a small
    # test model may not hold more: the floor is low, the default is not.
    ("promptTokens", 2600, 1, 200_000, True),
    ("wedgeSeconds", 60, 1, 86_400, False),
)


def parse_settings(text: str | bytes) -> tuple[Settings, tuple[str, ...]]:
    """Read the settings file's text.

    Returns the settings and the names of fields that this version does not know. Those are reported, not
    refused: an operator one version ahead may write a field that an older sidecar, still running, has no use
    for.

    Raises SettingsError.
    """
    remedy = f'write a JSON object such as {{"version": {SETTINGS_VERSION}, "model": "name"}}'
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise SettingsError("settings file", _head(text), f"is not JSON ({error})", remedy) from None
    except RecursionError:
        raise SettingsError("settings file", _head(text), "is nested too deeply", remedy) from None
    if not isinstance(raw, dict):
        raise SettingsError("settings file", _head(text), "is not a JSON object", remedy)
    version = raw.get("version")
    if version != SETTINGS_VERSION or isinstance(version, bool):
        raise SettingsError("version", version, "is not a version this sidecar reads", f"set it to {SETTINGS_VERSION}")
    model = raw.get("model")
    if not isinstance(model, str) or not model.strip():
        raise SettingsError(
            "model", model, "must be a non-empty string", "set it to the served model name of the engines"
        )
    numbers = {
        name: _number(raw, name, default=default, low=low, high=high, whole=whole)
        for name, default, low, high, whole in _NUMBERS
    }
    known = {"version", "model", "tokensPerMinute", *numbers}
    # Somewhat more than the probes need at this pace, so that it binds only where prompts are longer than thought.
    usual = TOKENS_PER_INTERVAL * numbers["promptTokens"] * 60.0 / numbers["intervalSeconds"]
    budget = _number(raw, "tokensPerMinute", default=usual, low=min(usual, 100), high=max(usual, 1e9), whole=False)
    settings = Settings(
        model=model,
        interval=numbers["intervalSeconds"],
        timeout=numbers["timeoutSeconds"],
        failure_threshold=int(numbers["failureThreshold"]),
        prompt_tokens=int(numbers["promptTokens"]),
        wedge=numbers["wedgeSeconds"],
        tokens_per_minute=budget,
    )
    return settings, tuple(sorted(str(name) for name in raw if name not in known))


def _head(text: str | bytes) -> str:
    head = text[:_MAX_SHOWN]
    return head if isinstance(head, str) else head.decode("utf-8", "replace")


def _number(raw: Mapping[str, object], name: str, *, default: float, low: float, high: float, whole: bool) -> float:
    value = raw.get(name, default)
    kind = "a whole number" if whole else "a number"
    remedy = f"set {kind} from {low:g} to {high:g} (default {default:g})"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise SettingsError(name, value, f"must be {kind}", remedy)
    if not math.isfinite(value) or (whole and value != int(value)):
        raise SettingsError(name, value, f"must be {kind}", remedy)
    if not low <= value <= high:
        raise SettingsError(name, value, "is out of range", remedy)
    return value


def parse_environment(env: Mapping[str, str], config_path: str | None = None) -> Environment:
    """Read the process environment. ``config_path`` (a command line flag) wins over DSV4_CANARY_CONFIG.

    Raises SettingsError.
    """
    role_text = env.get("DSV4_CANARY_ROLE")
    if role_text not in (Role.PREFILL.value, Role.DECODE.value):
        raise SettingsError(
            "DSV4_CANARY_ROLE",
            role_text,
            "is not a role",
            "set it to 'prefill' or 'decode', the engine's own role",
        )
    pod_ip = _text(env, "POD_IP", "set it from the downward API field status.podIP")
    try:
        ipaddress.ip_address(pod_ip)
    except ValueError:
        raise SettingsError(
            "POD_IP", pod_ip, "is not an IP address", "set it from the downward API field status.podIP"
        ) from None
    return Environment(
        role=Role(role_text),
        listen_port=_port(env, "DSV4_CANARY_LISTEN_PORT", None),
        engine_url=_url(env, "DSV4_CANARY_ENGINE_URL"),
        peer_host=_text(env, "DSV4_CANARY_PEER_HOST", "set it to the headless Service of the other role"),
        peer_port=_port(env, "DSV4_CANARY_PEER_PORT", None),
        bootstrap_port=_port(env, "DSV4_CANARY_BOOTSTRAP_PORT", 8998),
        fingerprint=_text(env, "DSV4_CANARY_FINGERPRINT", "set it to the fingerprint of the pod's generation"),
        pod_name=_text(env, "POD_NAME", "set it from the downward API field metadata.name"),
        pod_namespace=env.get("POD_NAMESPACE", ""),
        pod_uid=env.get("POD_UID", ""),
        pod_ip=pod_ip,
        engine_dead=_seconds(env, "DSV4_CANARY_ENGINE_DEAD_SECONDS", 600.0),
        require_guard=_guard(env),
        config_path=config_path or env.get("DSV4_CANARY_CONFIG") or DEFAULT_CONFIG_PATH,
    )


def _guard(env: Mapping[str, str]) -> str | None:
    value = env.get("DSV4_CANARY_REQUIRE_GUARD")
    if value is None or value in GUARD_FORMATS:
        return value
    raise SettingsError(
        "DSV4_CANARY_REQUIRE_GUARD",
        value,
        "is no index-K format with a guard",
        f"set it to {' or '.join(GUARD_FORMATS)}, or leave it out when no guard is required",
    )


def _text(env: Mapping[str, str], name: str, remedy: str) -> str:
    value = env.get(name)
    if value is None or not value.strip():
        raise SettingsError(name, value, "must not be empty", remedy)
    return value.strip()


def _port(env: Mapping[str, str], name: str, default: int | None) -> int:
    value = env.get(name)
    if value is None and default is not None:
        return default
    hint = "set a TCP port from 1 to 65535"
    if value is None or not value.isascii() or not value.isdigit():
        raise SettingsError(name, value, "is not a port number", hint)
    if not 1 <= int(value[:9]) <= 65_535:
        raise SettingsError(name, value, "is out of range", hint)
    return int(value)


def _seconds(env: Mapping[str, str], name: str, default: float) -> float:
    value = env.get(name)
    if value is None:
        return default
    hint = f"set seconds from 1 to 604800 (default {default:g})"
    try:
        seconds = float(value)
    except ValueError:
        raise SettingsError(name, value, "is not a number", hint) from None
    if not 1 <= seconds <= 604_800:  # also refuses NaN
        raise SettingsError(name, value, "is out of range", hint)
    return seconds


def _url(env: Mapping[str, str], name: str) -> str:
    value = env.get(name)
    hint = "set the engine's own address, such as http://127.0.0.1:30000"
    if not value:
        raise SettingsError(name, value, "must not be empty", hint)
    try:
        parts = urlsplit(value)
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable:
        raise SettingsError(name, value, "is not an http URL", hint)
    return value.rstrip("/")
