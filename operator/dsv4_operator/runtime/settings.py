"""The operator's settings: flags win over environment variables (DSV4_OPERATOR_<NAME>), those over defaults.

A trap that fixes the names: for a Service called `dsv4-operator`, kubelet puts DSV4_OPERATOR_SERVICE_HOST,
DSV4_OPERATOR_PORT and DSV4_OPERATOR_PORT_8080_TCP into every Pod of the namespace. No field may be called
like that.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NoReturn

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

PREFIX: Final = "DSV4_OPERATOR_"
EXIT_BAD_SETTINGS: Final = 2
_SERVICE_LINKS: Final = re.compile(r"(^|_)SERVICE_(HOST|PORT\w*)$|(^|_)PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?$")
_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_DNS_LABEL: Final = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
_DNS_NAME: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
_IMAGE: Final = r"^\S+$"


def _setting(default: Any, group: str, wants: str, text: str, **limits: Any) -> Any:
    """A field; `wants` says which values are good, for --help and for error messages."""
    return Field(default, description=text, json_schema_extra={"group": group, "wants": wants}, **limits)


def own_namespace() -> str:
    """The namespace this process runs in: POD_NAMESPACE, the service account's, or `default`."""
    if os.environ.get("POD_NAMESPACE"):
        return os.environ["POD_NAMESPACE"]
    try:
        return _NAMESPACE_FILE.read_text().strip() or "default"
    except OSError:
        return "default"


class OperatorSettings(BaseSettings):
    """All settings. Make it with `parse_settings`."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, env_ignore_empty=True, validate_default=True
    )

    namespaces: Annotated[tuple[str, ...], NoDecode] = _setting(
        (),
        "Scope",
        "namespace names, separated by commas",
        "Namespaces to look after; none means all of the cluster.",
    )
    cluster_domain: str = _setting(
        "cluster.local", "Scope", "a DNS name", "DNS domain of the cluster's Services.", pattern=_DNS_NAME
    )

    engine_image: str | None = _setting(
        None,
        "Default images",
        "an image reference",
        "SGLang image for objects without spec.engine.image.",
        pattern=_IMAGE,
    )
    canary_image: str | None = _setting(
        None,
        "Default images",
        "an image reference",
        "Canary image for objects without spec.canary.image.",
        pattern=_IMAGE,
    )
    router_image: str | None = _setting(
        None,
        "Default images",
        "an image reference",
        "Router image for objects without spec.router.image.",
        pattern=_IMAGE,
    )
    workers: int = _setting(
        16, "Work", "an integer from 1 to 256", "Objects reconciled at the same time.", ge=1, le=256
    )
    resync_seconds: float = _setting(
        300.0,
        "Work",
        "seconds from 10 to 86400",
        "Time between full LISTs, which find what watches missed (seconds).",
        ge=10,
        le=86400,
    )
    queue_stall_seconds: float = _setting(
        600.0,
        "Work",
        "seconds from 10 to 86400",
        "/healthz fails when work waits and none was finished for so long (seconds).",
        ge=10,
        le=86400,
    )

    kubeconfig: str | None = _setting(
        None,
        "API server",
        "a path",
        "Kubeconfig file. Else $KUBECONFIG, the Pod's service account, or ~/.kube/config, in this order.",
    )
    context: str | None = _setting(
        None, "API server", "a context of the kubeconfig", "Context. Else the kubeconfig's current one."
    )
    request_timeout: float = _setting(
        30.0,
        "API server",
        "seconds from 1 to 600",
        "Time for one request to the API server (seconds).",
        ge=1,
        le=600,
    )

    lease: bool = _setting(
        True,
        "High availability",
        "true or false",
        "Work only while holding a Lease, so that several replicas can run.",
    )
    lease_name: str = _setting(
        "dsv4-operator",
        "High availability",
        "an object name",
        "Name of the Lease.",
        pattern=_DNS_NAME,
        max_length=253,
    )
    lease_namespace: str = Field(
        default_factory=own_namespace,
        description="Namespace of the Lease, and of the webhook's Secret; by default the operator's own.",
        pattern=_DNS_LABEL,
        json_schema_extra={"group": "High availability", "wants": "a namespace name"},
    )

    webhook: bool = _setting(
        False, "Webhook", "true or false", "Serve the validating webhook, which refuses at apply what policy refuses."
    )
    webhook_hosts: Annotated[tuple[str, ...], NoDecode] = _setting(
        (),
        "Webhook",
        "names or addresses, separated by commas",
        "By which API servers call the webhook; its certificate is for these.",
        validate_default=True,
    )
    webhook_configuration: str = _setting(
        "dsv4-operator",
        "Webhook",
        "an object name",
        "ValidatingWebhookConfiguration whose caBundle is kept right.",
        pattern=_DNS_NAME,
        max_length=253,
    )
    webhook_secret: str = _setting(
        "dsv4-operator-webhook",
        "Webhook",
        "an object name",
        "Secret that keeps the certificates.",
        pattern=_DNS_NAME,
        max_length=253,
    )
    # Not webhook_port: kubelet sets DSV4_OPERATOR_WEBHOOK_PORT for the Service in front of the webhook.
    webhook_listen_port: int = _setting(
        9443, "Webhook", "an integer from 1 to 65535", "Port of the webhook.", ge=1, le=65535
    )
    webhook_certificate_seconds: float = _setting(
        7776000.0,
        "Webhook",
        "seconds from 10 to 31536000",
        "Life of a serving certificate; it is renewed when a third of it is left (seconds).",
        ge=10,
        le=31536000,
    )

    listen_host: str = _setting(
        "0.0.0.0",
        "Observability",
        "an IP address or host name",
        "Address of /healthz, /readyz, /metrics, and of the webhook.",
    )
    listen_port: int = _setting(
        8080, "Observability", "an integer from 1 to 65535", "Port of /healthz, /readyz, /metrics.", ge=1, le=65535
    )
    metrics: bool = _setting(True, "Observability", "true or false", "Serve /metrics.")
    log_format: Literal["json", "text"] = _setting(
        "json", "Observability", "json or text", "Log lines as JSON, or for people."
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = _setting(
        "INFO", "Observability", "DEBUG, INFO, WARNING or ERROR", "Least level that is logged."
    )

    @field_validator("namespaces", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        names = _split_list(value)
        for name in names:
            if not re.fullmatch(_DNS_LABEL, name):
                raise ValueError(f"{name!r} is no namespace name")
        return names

    @field_validator("webhook_hosts", mode="before")
    @classmethod
    def _split_hosts(cls, value: object, info: ValidationInfo) -> object:
        hosts = _split_list(value)
        for host in hosts:
            if not re.fullmatch(_DNS_NAME, host) and not _is_address(host):
                raise ValueError(f"{host!r} is neither a DNS name nor an IP address")
        if info.data.get("webhook") and not hosts:
            raise ValueError("the webhook is on and its certificate would be for nobody")
        return hosts

    @field_validator("log_level", mode="before")
    @classmethod
    def _upper(cls, value: object) -> object:
        return value.upper() if isinstance(value, str) else value


def _split_list(value: object) -> tuple[str, ...]:
    parts = value if isinstance(value, (list, tuple)) else [value]
    return tuple(dict.fromkeys(name.strip() for part in parts for name in str(part).split(",") if name.strip()))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def parse_settings(argv: Sequence[str] | None = None) -> OperatorSettings:
    """Settings from flags and environment. A bad one: one line on stderr for each, and SystemExit(2)."""
    flags = {key: value for key, value in vars(_parser().parse_args(argv)).items() if value is not None}
    try:
        return OperatorSettings(**flags)
    except ValidationError as error:
        for problem in error.errors(include_url=False):
            sys.stderr.write(_explain(problem, flags) + "\n")
        raise SystemExit(EXIT_BAD_SETTINGS) from None


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Variables with our prefix that mean nothing to us: mistyped ones, to be warned about."""
    known = {PREFIX + name.upper() for name in OperatorSettings.model_fields}
    return sorted(
        name
        for name in environment
        if name.startswith(PREFIX) and name not in known and not _SERVICE_LINKS.search(name.removeprefix(PREFIX))
    )


def _explain(problem: Any, flags: Mapping[str, object]) -> str:
    name = str(problem["loc"][0])
    flag, variable = "--" + name.replace("_", "-"), PREFIX + name.upper()
    source = flag if name in flags else variable
    wants = _extra(name)["wants"]
    why = problem["msg"].removeprefix("Value error, ")
    return f"dsv4-operator: {source}={problem['input']!r}: {why}; give {wants} in {flag} or {variable}"


def _extra(name: str) -> dict[str, str]:
    extra = OperatorSettings.model_fields[name].json_schema_extra
    assert isinstance(extra, dict)
    return {key: str(value) for key, value in extra.items()}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line instead of the whole usage."""
        sys.stderr.write(f"dsv4-operator: {message}; see --help\n")
        raise SystemExit(EXIT_BAD_SETTINGS)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="dsv4-operator",
        description="Runs the operator for DSV4Deployment objects.",
        epilog=f"Every flag is also an environment variable: --log-level is {PREFIX}LOG_LEVEL. Flags win.",
        allow_abbrev=False,
    )
    groups: dict[str, Any] = {}
    for name, field in OperatorSettings.model_fields.items():
        extra = _extra(name)
        if extra["group"] not in groups:
            groups[extra["group"]] = parser.add_argument_group(extra["group"])
        group = groups[extra["group"]]
        flag = "--" + name.replace("_", "-")
        text = f"{field.description} {_default_text(name)}".replace("%", "%%")
        if field.annotation is bool:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=text)
        elif isinstance(field.default, tuple):
            group.add_argument(flag, action="append", metavar="NAMES", help=f"{text} May be given several times.")
        else:
            group.add_argument(flag, metavar=_metavar(extra["wants"]), help=text)
    return parser


def _default_text(name: str) -> str:
    field = OperatorSettings.model_fields[name]
    if field.default_factory is not None:
        return ""
    match field.default:
        case None | ():
            shown = "none"
        case bool():
            return f"[default {str(field.default).lower()}]"
        case float():
            shown = f"{field.default:.10g}"
        case other:
            shown = str(other)
    return f"[{_extra(name)['wants']}; default {shown}]"


def _metavar(wants: str) -> str:
    words = {"an integer": "N", "seconds": "SECONDS", "a path": "FILE", "an image": "IMAGE"}
    return next((metavar for start, metavar in words.items() if wants.startswith(start)), "VALUE")
