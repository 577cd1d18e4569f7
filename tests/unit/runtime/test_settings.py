from __future__ import annotations

import re

import pytest

from dsv4_operator.runtime.settings import PREFIX, OperatorSettings, parse_settings, unknown_variables


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OperatorSettings.model_fields:
        monkeypatch.delenv(PREFIX + name.upper(), raising=False)
    monkeypatch.delenv("POD_NAMESPACE", raising=False)


def test_defaults() -> None:
    settings = parse_settings([])
    assert settings.namespaces == ()
    assert (settings.resync_seconds, settings.cluster_domain, settings.lease) == (300, "cluster.local", True)


def test_flag_beats_environment_beats_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSV4_OPERATOR_WORKERS", "3")
    monkeypatch.setenv("DSV4_OPERATOR_LOG_LEVEL", "debug")
    monkeypatch.setenv("DSV4_OPERATOR_KUBECONFIG", "")
    settings = parse_settings(["--workers", "5", "--no-lease"])
    assert (settings.workers, settings.log_level, settings.lease) == (5, "DEBUG", False)
    assert settings.kubeconfig is None, "an empty variable is no value"


@pytest.mark.parametrize(
    ("argv", "variable"),
    [
        (["--namespaces", "b,a", "--namespaces", "c"], None),
        ([], "b, a,c"),
        (["--namespaces=b", "--namespaces=a,c,a"], "ignored"),
    ],
)
def test_namespaces_by_comma_or_repeated(
    argv: list[str], variable: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable:
        monkeypatch.setenv("DSV4_OPERATOR_NAMESPACES", variable)
    assert parse_settings(argv).namespaces == ("b", "a", "c")


def test_hosts_of_the_webhook_add_up() -> None:
    settings = parse_settings(["--webhook", "--webhook-hosts=a.ns.svc,::1", "--webhook-hosts=127.0.0.1"])
    assert settings.webhook_hosts == ("a.ns.svc", "::1", "127.0.0.1")


def test_lease_namespace_is_the_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAMESPACE", "operators")
    assert parse_settings([]).lease_namespace == "operators"
    assert parse_settings(["--lease-namespace", "x"]).lease_namespace == "x"


@pytest.mark.parametrize(
    ("argv", "environment", "words"),
    [
        (["--workers", "many"], {}, ["--workers='many'", "integer", "from 1 to 256", "DSV4_OPERATOR_WORKERS"]),
        ([], {"WORKERS": "0"}, ["DSV4_OPERATOR_WORKERS='0'", "greater than or equal to 1", "--workers"]),
        (["--namespaces", "good,Bad_One"], {}, ["--namespaces", "'Bad_One' is no namespace name"]),
        (["--webhook"], {}, ["DSV4_OPERATOR_WEBHOOK_HOSTS", "would be for nobody", "--webhook-hosts"]),
        (["--webhook-hosts", "a.svc,*.b"], {}, ["--webhook-hosts", "'*.b' is neither a DNS name nor an IP address"]),
        (["--log-format", "xml"], {}, ["--log-format='xml'", "'json' or 'text'"]),
        (["--engine-image", ""], {}, ["--engine-image=''", "an image reference"]),
        (["--request-timeout", "nan"], {}, ["--request-timeout='nan'", "seconds from 1 to 600"]),
        (["--worker", "3"], {}, ["unrecognized arguments: --worker", "--help"]),
        ([], {"METRICS": "perhaps"}, ["DSV4_OPERATOR_METRICS='perhaps'", "true or false"]),
    ],
)
def test_bad_setting_is_one_line_and_exit_2(
    argv: list[str],
    environment: dict[str, str],
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(PREFIX + name, value)
    with pytest.raises(SystemExit) as exit_:
        parse_settings(argv)
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for word in words:
        assert word in error


def test_every_bad_setting_has_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_settings(["--workers", "0", "--listen-port", "0"])
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_help_names_every_flag_with_its_default_and_unit(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        parse_settings(["--help"])
    assert exit_.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    for name, field in OperatorSettings.model_fields.items():
        flag = "--" + name.replace("_", "-")
        assert flag in shown
        if isinstance(field.default, (int, float)) and not isinstance(field.default, bool):
            assert re.search(rf"{flag} \w+ [^\[]*\[[^\]]*default {field.default:.10g}\]", shown), flag
        if name.endswith("_seconds") or name.endswith("_timeout"):
            assert re.search(rf"{flag} SECONDS [^\[]*\(seconds\)", shown), flag


def test_no_setting_collides_with_the_variables_of_a_service_called_like_us() -> None:
    injected = {
        f"{PREFIX}SERVICE_HOST": "10.0.0.1",
        f"{PREFIX}SERVICE_PORT": "8080",
        f"{PREFIX}SERVICE_PORT_HTTP": "8080",
        f"{PREFIX}PORT": "tcp://10.0.0.1:8080",
        f"{PREFIX}PORT_8080_TCP": "tcp://10.0.0.1:8080",
        f"{PREFIX}PORT_8080_TCP_ADDR": "10.0.0.1",
        f"{PREFIX}METRICS_SERVICE_HOST": "10.0.0.2",
        f"{PREFIX}METRICS_PORT": "tcp://10.0.0.2:8080",
    }
    assert not injected.keys() & {PREFIX + name.upper() for name in OperatorSettings.model_fields}
    assert unknown_variables(injected) == []


def test_mistyped_variables_are_found() -> None:
    environment = {f"{PREFIX}WORKERS": "1", f"{PREFIX}WORKRS": "1", f"{PREFIX}IMAGE": "x", "HOME": "/"}
    assert unknown_variables(environment) == [f"{PREFIX}IMAGE", f"{PREFIX}WORKRS"]
