"""Settings: every wrong value is refused with its name, and a broken new file keeps the old one in force."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4_canary.cli import main
from dsv4_canary.model import Role
from dsv4_canary.settings import SettingsError, parse_environment, parse_settings
from dsv4_canary.watch import SettingsFile

GOOD: dict[str, Any] = {"version": 1, "model": "m"}
ENV = {
    "DSV4_CANARY_ROLE": "prefill",
    "DSV4_CANARY_LISTEN_PORT": "30002",
    "DSV4_CANARY_ENGINE_URL": "http://127.0.0.1:30000",
    "DSV4_CANARY_PEER_HOST": "a-f-decode",
    "DSV4_CANARY_PEER_PORT": "30010",
    "DSV4_CANARY_FINGERPRINT": "f",
    "POD_NAME": "p",
    "POD_IP": "10.1.0.5",
}


def test_defaults() -> None:
    settings, unknown = parse_settings(json.dumps(GOOD))
    assert (settings.interval, settings.timeout, settings.failure_threshold) == (30, 60, 3)
    assert (settings.prompt_tokens, settings.wedge, settings.absence, unknown) == (2600, 60, 90, ())


def test_default_budget_follows_pace_and_length() -> None:
    def budget(**changes: float) -> float:
        return parse_settings(json.dumps(GOOD | changes))[0].tokens_per_minute

    assert budget() == pytest.approx(11_960)
    assert budget(intervalSeconds=5) == pytest.approx(71_760)
    assert budget(promptTokens=5200) == pytest.approx(23_920)
    assert budget(tokensPerMinute=500) == 500


@pytest.mark.parametrize("value", ["bf16", "fp8"])
def test_required_guard(value: str) -> None:
    assert parse_environment(ENV).require_guard is None
    assert parse_environment(ENV | {"DSV4_CANARY_REQUIRE_GUARD": value}).require_guard == value


@pytest.mark.parametrize("value", ["", "fp4", "BF16", "1"])
def test_required_guard_of_another_format_is_refused(value: str) -> None:
    with pytest.raises(SettingsError, match="DSV4_CANARY_REQUIRE_GUARD"):
        parse_environment(ENV | {"DSV4_CANARY_REQUIRE_GUARD": value})


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"version": 2}, "version"),
        ({"version": True}, "version"),
        ({"version": None}, "version"),
        ({"model": ""}, "model"),
        ({"model": 3}, "model"),
        ({"intervalSeconds": 0}, "intervalSeconds"),
        ({"intervalSeconds": "30"}, "intervalSeconds"),
        ({"intervalSeconds": float("nan")}, "intervalSeconds"),
        ({"timeoutSeconds": -1}, "timeoutSeconds"),
        ({"timeoutSeconds": 1e9}, "timeoutSeconds"),
        ({"failureThreshold": 1.5}, "failureThreshold"),
        ({"failureThreshold": True}, "failureThreshold"),
        ({"promptTokens": 0}, "promptTokens"),
        ({"promptTokens": float("inf")}, "promptTokens"),
        ({"wedgeSeconds": None}, "wedgeSeconds"),
        ({"tokensPerMinute": 0}, "tokensPerMinute"),
        ({"tokensPerMinute": "many"}, "tokensPerMinute"),
    ],
)
def test_wrong_field_is_named_on_one_line(change: dict[str, Any], name: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings(json.dumps(GOOD | change))
    text = str(caught.value)
    assert text.startswith(name)
    assert "\n" not in text
    assert "set it to" in text or "set a" in text


@pytest.mark.parametrize("text", ["", "{", "[]", "1", '"x"', "null", "[" * 20_000])
def test_no_object_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="settings file"):
        parse_settings(text)


def test_unknown_fields_are_reported_not_refused() -> None:
    assert parse_settings(json.dumps(GOOD | {"later": 1}))[1] == ("later",)


@given(st.binary(max_size=200))
def test_any_bytes_give_settings_or_a_settings_error(data: bytes) -> None:
    try:
        parse_settings(data)
    except SettingsError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DSV4_CANARY_ROLE", None),
        ("DSV4_CANARY_ROLE", "Prefill"),
        ("DSV4_CANARY_LISTEN_PORT", None),
        ("DSV4_CANARY_LISTEN_PORT", "0"),
        ("DSV4_CANARY_LISTEN_PORT", "99999999999999999999"),
        ("DSV4_CANARY_LISTEN_PORT", "http"),
        ("DSV4_CANARY_ENGINE_URL", "127.0.0.1:30000"),
        ("DSV4_CANARY_ENGINE_URL", "http://:99"),
        ("DSV4_CANARY_ENGINE_URL", "http://h:x"),
        ("DSV4_CANARY_PEER_HOST", " "),
        ("DSV4_CANARY_PEER_PORT", None),
        ("DSV4_CANARY_BOOTSTRAP_PORT", "-1"),
        ("DSV4_CANARY_ENGINE_DEAD_SECONDS", "nan"),
        ("DSV4_CANARY_ENGINE_DEAD_SECONDS", "soon"),
        ("DSV4_CANARY_FINGERPRINT", None),
        ("POD_NAME", None),
        ("POD_IP", "here"),
    ],
)
def test_wrong_variable_ends_with_2_and_one_line(
    name: str, value: str | None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "c.json").write_text(json.dumps(GOOD))
    env = {key: text for key, text in (ENV | {name: value}).items() if text is not None}
    assert main(["serve", "--check", "--config", str(tmp_path / "c.json")], env) == 2
    text = capsys.readouterr().err
    assert text.startswith(f"dsv4_canary: {name} = ")
    assert text.count("\n") == 1


def test_good_environment() -> None:
    env = parse_environment(ENV)
    assert env.role is Role.PREFILL
    assert (env.bootstrap_port, env.engine_dead) == (8998, 600)
    assert env.config_path == "/etc/dsv4-canary/canary.json"


def test_missing_settings_file_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--config", "/nowhere/canary.json"], ENV) == 2
    assert "/nowhere/canary.json" in capsys.readouterr().err


def test_changed_file_is_taken_and_a_broken_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "canary.json"
    path.write_text(json.dumps(GOOD))
    file = SettingsFile(str(path))
    assert file.poll() is False
    path.write_text(json.dumps(GOOD | {"intervalSeconds": 5}))
    assert file.poll() is True
    assert (file.settings.interval, file.error) == (5, None)
    path.write_text(json.dumps(GOOD | {"intervalSeconds": "x"}))
    assert file.poll() is True
    assert file.settings.interval == 5
    assert file.error is not None
    assert "intervalSeconds" in file.error
    assert file.poll() is False
    path.unlink()
    assert file.poll() is True
    assert "cannot be read" in (file.error or "")
    path.write_text(json.dumps(GOOD | {"intervalSeconds": "x"}))
    assert file.poll() is True
    assert "intervalSeconds" in (file.error or "")
    path.write_text(json.dumps(GOOD | {"intervalSeconds": 5}))
    assert file.poll() is True
    assert file.error is None
