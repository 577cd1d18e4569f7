"""Marker of the gated image: complete, of the right format, or named as missing."""

from __future__ import annotations

import pytest

from dsv4_canary.engine_view import parse_metrics
from dsv4_canary.guard import GuardInfo, check


def marker(process: str, index_k: str = "bf16", value: int = 1) -> str:
    return (
        f'dsv4_guard_info{{version="1.0",release="0.5.23",index_k="{index_k}",process="{process}",pid="{process}"}} '
        f"{value}\n"
    )


BOTH = marker("api") + marker("scheduler")


def read(text: str) -> GuardInfo | None:
    return parse_metrics(text).guard


def test_marker_is_read() -> None:
    info = read(BOTH)
    assert info is not None
    assert info.complete
    assert (info.format, info.version, info.release) == ("bf16", "1.0", "0.5.23")


@pytest.mark.parametrize(
    ("required", "text", "present", "word"),
    [
        ("bf16", BOTH, True, ""),
        ("bf16", "sglang:num_running_reqs 1\n", False, "dsv4_guard_info is missing"),
        ("bf16", marker("api"), False, "scheduler process"),
        ("bf16", marker("scheduler"), False, "api process"),
        ("bf16", marker("api") + marker("scheduler", value=0), False, "scheduler process"),
        ("bf16", marker("api", "fp8") + marker("scheduler", "fp8"), False, "says fp8"),
        ("bf16", marker("api", "fp8") + marker("scheduler"), False, "different formats: bf16, fp8"),
        ("fp8", marker("api", "fp8") + marker("scheduler", "fp8"), True, ""),
        (None, "", False, ""),
        (None, BOTH, True, ""),
    ],
)
def test_check(required: str | None, text: str, present: bool, word: str) -> None:
    state = check(required, read(text))
    assert (state.required, state.present) == (required is not None, present)
    assert state.missing is (required is not None and not present)
    assert word in state.message
    assert bool(state.message) is state.missing
    assert state.to_json()["present"] is present


def test_unreadable_metrics_are_said() -> None:
    state = check("bf16", None, readable=False)
    assert state.missing
    assert "/metrics cannot be read" in state.message
