"""From results to a sentence."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4_canary.attempt import ProbeResult
from dsv4_canary.conclude import TURNED_AWAY, Conclusion, Seen, conclude
from dsv4_canary.judge import Judgement, Kind
from dsv4_canary.model import Cache, Mode, ProbeName, Severity
from dsv4_canary.signatures import CATALOGUE


def result(kind: Kind = Kind.PASS, cache: Cache = Cache.COLD, *names: str, **more: Any) -> ProbeResult:
    failures = {
        name: CATALOGUE[name].severity if name in CATALOGUE else more.get("severity", Severity.TRANSPORT)
        for name in names
    }
    what = more.get("what", f"{CATALOGUE[names[0]].meaning} ({names[0]})" if names and names[0] in CATALOGUE else "")
    return ProbeResult(more.get("probe", ProbeName.ECHO), Mode.FUNCTIONAL, Judgement(kind, None, what, failures), cache)


TIMEOUT = result(Kind.FAIL, Cache.UNKNOWN, "timeout", what="did not come back in time")


def test_all_right() -> None:
    verdict = conclude([result(), result(cache=Cache.DEVICE), result(cache=Cache.HOST)], Seen(hicache=True))
    assert verdict.conclusion is Conclusion.PASS
    assert verdict.message == "3 of 3 probes came back right"
    assert verdict.tiers == {"cold": (1, 0), "device": (1, 0), "host": (1, 0)}
    assert verdict.notes == ()


def test_only_cached_prompts_are_damaged() -> None:
    verdict = conclude([result(), result(Kind.FAIL, Cache.HOST, "S1"), result(Kind.FAIL, Cache.HOST, "S15")], Seen())
    assert verdict.conclusion is Conclusion.FAIL
    assert "prompts from the host cache came back damaged and cold ones did not" in verdict.message
    assert verdict.tiers["host"] == (2, 2)
    # The parser is not to blame, whatever the signatures.
    assert not any("parser" in note for note in verdict.notes)


def test_cold_prompts_are_damaged_too() -> None:
    results = [result(Kind.FAIL, Cache.COLD, "S1"), result(Kind.FAIL, Cache.HOST, "S1"), result()]
    verdict = conclude(results, Seen())
    assert "raw markup in the text (S1)" in verdict.message
    assert any(note.startswith("S1: look at the tool-call parser") for note in verdict.notes)


def test_cold_was_not_asked() -> None:
    assert "(S1)" in conclude([result(Kind.FAIL, Cache.HOST, "S1")], Seen()).message


def test_rejected_requests_are_no_answers() -> None:
    rejected = result(
        Kind.FAIL, Cache.UNKNOWN, "rejected", what="was rejected, decode answered HTTP 400", severity=Severity.CONTRACT
    )
    verdict = conclude([rejected, rejected, rejected], Seen())
    assert verdict.message == "3 of 3 probes failed: tool calls were rejected, decode answered HTTP 400"
    assert verdict.tiers == {}
    assert not any("cache" in note for note in verdict.notes)


def test_requests_turned_away_prove_nothing() -> None:
    away = result(Kind.BUSY, Cache.UNKNOWN, what=TURNED_AWAY)
    verdict = conclude([away, away, away], Seen())
    assert verdict.conclusion is Conclusion.NOTHING
    assert "turns requests away with HTTP 429" in verdict.message


def test_one_odd_reply_is_no_proof() -> None:
    notes = conclude([result(), result(Kind.FAIL, Cache.COLD, "S10")], Seen()).notes
    assert any("--rounds" in note for note in notes)


def test_silence_names_who_is_stuck() -> None:
    seen = Seen({"decode": "requests run"}, bootstrap="10.0.0.1:8998", stopped="stopped early")
    verdict = conclude([TIMEOUT, TIMEOUT, TIMEOUT], seen)
    assert verdict.message == "3 of 3 probes failed: tool calls did not come back in time"
    assert verdict.notes == ("decode: requests run", "stopped early")
    assert verdict.tiers == {}


def test_silence_without_a_culprit_mentions_the_registry() -> None:
    notes = conclude([TIMEOUT], Seen(bootstrap="10.0.0.1:8998", hicache=True)).notes
    assert notes == ("decode was told to find the prefill at 10.0.0.1:8998; give --bootstrap-host if it cannot there",)


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (Kind.ENGINE_GONE, "refuses connections"),
        (Kind.PEER_LOADING, "does not serve yet"),
        (Kind.PEER_UNREACHABLE, "cannot be reached"),
        (Kind.BUSY, "at work"),
        (Kind.UNUSABLE, "does not serve the probes"),
    ],
)
def test_nothing_proved(kind: Kind, word: str) -> None:
    verdict = conclude([result(kind, Cache.UNKNOWN)], Seen())
    assert verdict.conclusion is Conclusion.NOTHING
    assert word in verdict.message


def test_what_is_not_covered_is_said() -> None:
    repeat = result(cache=Cache.UNKNOWN, probe=ProbeName.REPEAT)
    assert any("--enable-cache-report" in note for note in conclude([repeat], Seen()).notes)
    notes = conclude([result(), result(probe=ProbeName.REPEAT)], Seen(hicache=True)).notes
    assert any("no prompt came from a cache" in note for note in notes)
    assert any("HiCache is not proved" in note for note in notes)
    drift = result(Kind.UNUSABLE, Cache.UNKNOWN, probe=ProbeName.DRIFT, what="no logprobs")
    notes = conclude([result(), drift, result(Kind.BUSY, Cache.UNKNOWN)], Seen()).notes
    assert "drift: could not be used, no logprobs" in notes
    assert any(note.startswith("1 probes got no answer in time") for note in notes)


def test_warning_alone_passes() -> None:
    assert conclude([result(Kind.PASS, Cache.COLD, "S13")], Seen()).conclusion is Conclusion.PASS


@given(
    st.lists(
        st.builds(
            result, st.sampled_from(Kind), st.sampled_from(Cache), st.sampled_from([*CATALOGUE, "timeout", "drift"])
        ),
        max_size=12,
    )
)
def test_any_results_have_a_verdict(results: list[ProbeResult]) -> None:
    verdict = conclude(results, Seen())
    kinds = {one.judgement.kind for one in results}
    assert (verdict.conclusion is Conclusion.FAIL) is (Kind.FAIL in kinds)
    assert (verdict.conclusion is Conclusion.NOTHING) is (not kinds & {Kind.PASS, Kind.FAIL})
    assert verdict.message
