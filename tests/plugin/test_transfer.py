"""Fence, deadline, handshake, early send, checksum and digest on the real classes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dsv4_guard.transfer import digest


def test_upstream_drops_the_forwards_event(value: Callable[..., Any]) -> None:
    assert value("transfer", "stock_event") == {"carried": []}


def test_nothing_is_posted_before_the_forwards_event(value: Callable[..., Any]) -> None:
    seen = value("transfer", "event")
    assert seen["asked"]
    assert seen["by"], "the queueing thread waited"
    assert seen["posted_before"] == []
    assert seen["posted"] == [[1, [0]]]
    assert seen["done"]


def test_an_event_belongs_to_one_chunk(value: Callable[..., Any]) -> None:
    assert value("transfer", "sender_event") == {"events": [[True], []]}


def test_an_event_that_cannot_be_read_fails_its_room_alone(value: Callable[..., Any]) -> None:
    seen = value("transfer", "broken_event")
    assert seen["failed"]
    assert seen["other"]
    assert seen["told"]
    assert "CUDA error" in seen["reason"]


def test_upstream_lets_one_stuck_transfer_block_its_worker(value: Callable[..., Any]) -> None:
    assert value("transfer", "stock_stuck") == {"other": False}


@pytest.mark.parametrize("settles", [False, True])
def test_a_stuck_transfer_ends_on_both_sides_and_others_are_served(
    value: Callable[..., Any], release: str, settles: bool
) -> None:
    seen = value("transfer", "stuck", settles=settles)
    assert seen["other"]
    assert seen["failed"]
    assert seen["told"]
    assert seen["held_meanwhile"] == (release == "0.5.17"), "source pages are kept where decode counts arrivals itself"
    assert bool(seen["released"]) == (not settles)
    if release == "0.5.17":
        assert [notice[0] for notice in seen["notices"]] == ["decode-agent"]
        assert seen["notices"][0][1].startswith("1_dsv4guard_fail_")
    else:
        failures = [message for message in seen["messages"] if message[1] == "1"]
        assert [message[2] for message in failures] == ["0"]
        assert "deadline 2 s" in failures[0][4]


@pytest.mark.parametrize("gone", [False, True])
def test_an_aborted_transfer_is_cancelled_soon(value: Callable[..., Any], gone: bool) -> None:
    """Deadline 6 s, short limit 0.4 s."""
    seen = value("deadline", "aborted", gone=gone)
    assert seen["other"], "the worker is not free"
    assert seen["cancelled"], "the write goes on"
    assert seen["released"] == [1, 1]
    assert seen["seconds"] < 2
    assert not seen["acknowledged"], "a cancelled write proves nothing"


def test_an_abort_waits_for_writes_that_end(value: Callable[..., Any]) -> None:
    assert value("deadline", "abort_that_settles")


def test_every_write_of_a_room_is_cancelled(value: Callable[..., Any]) -> None:
    assert value("deadline", "slow_post") == [1, 1]


def test_further_rooms_of_a_stuck_peer_cost_little(value: Callable[..., Any]) -> None:
    """Deadline 3 s: 2.25 s for the first, and for each of the four others 0.15 s (0.75 of the short limit)."""
    seen = value("deadline", "several_stuck")
    assert seen["other"]
    assert seen["seconds"] < 5
    assert seen["posted"] == [1, 2, 3, 4, 5, 6]
    assert seen["told"]
    assert seen["told_in"] > 3, "decode is told at the deadline of the last, as before"


@pytest.mark.parametrize("settles", [True, False])
def test_a_peer_that_is_back_gets_the_whole_limit(value: Callable[..., Any], settles: bool) -> None:
    assert value("deadline", "peer_back", settles=settles) == {"kept": settles, "done": True}


def test_an_error_is_no_sign_of_life(value: Callable[..., Any]) -> None:
    seen = value("deadline", "peer_still_stuck")
    assert seen["kept"]
    assert seen["given_up"]
    assert seen["seconds"] < 1


@pytest.mark.parametrize("how", ["unreadable", "sibling", "building", "settles"])
def test_decode_hears_of_a_transfer_that_broke_off(hosts: Callable[[str], Any], how: str) -> None:
    """Deadline 2 s. Not before the writes have settled, or else the deadline."""
    outcome = hosts("0.5.23").run("deadline", "broken", how=how)
    assert outcome.exit == 0, outcome.output
    seen = outcome.value
    assert seen["failed"] and seen["other"]
    assert seen["failed_in"] < 1.5
    assert not seen["too_early"]
    assert seen["told"]
    assert (seen["told_in"] >= 2) == (how != "settles")
    assert seen["released"] == {"unreadable": [1, 1], "settles": []}.get(how, [1])


@pytest.mark.parametrize(("chosen", "seconds"), [("", 75), ("20", 75), ("300", 300)])
def test_decode_keeps_an_aborted_requests_pages_for_longer_than_the_deadline(
    hosts: Callable[[str], Any], chosen: str, seconds: float
) -> None:
    name = "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT"
    outcome = hosts("0.5.23").run("deadline", "release_timeout", env={name: chosen} if chosen else {})
    assert outcome.exit == 0, outcome.output
    assert outcome.value == seconds
    assert outcome.output.count(name) == (seconds == 75)


def test_decode_hears_of_the_failure(value: Callable[..., Any], release: str) -> None:
    seen = value("transfer", "told_decode")
    assert seen["failed"]
    assert seen["reason"] == "late"
    assert seen["other"] == 2
    assert seen["rest"] == ([0] if release == "0.5.17" else "not used")


@pytest.mark.parametrize(
    ("prefill", "decode", "accepted"),
    [
        ("fp8", "fp8", True),
        (None, "fp8", True),
        ("fp8", None, True),
        ("bf16", "bf16", True),
        ("fp8", "bf16", False),
        ("bf16", "fp8", False),
        ("bf16", None, False),
        (None, "bf16", False),
        ("fp4", "fp8", False),
    ],
)
def test_peers_of_different_formats_refuse(
    value: Callable[..., Any], prefill: str | None, decode: str | None, accepted: bool
) -> None:
    """None is an engine without the plugin."""
    seen = value("handshake", "pair", prefill=prefill, decode=decode)
    assert seen["accepted"] is accepted
    if not accepted:
        assert "index_k:" in seen["error"]
        assert "mismatch" in seen["error"]


def test_early_send_waits_for_a_load_of_the_same_build(hosts: Callable[[str], Any]) -> None:
    def sends(index: int, guarded: bool) -> Any:
        outcome = hosts("0.5.17").run("early_send", "sends", consumer_index=index, guarded=guarded)
        assert outcome.exit == 0, outcome.output
        return outcome.value

    assert sends(0, guarded=False) == [1, 2, 3], "upstream sends at once"
    assert sends(0, guarded=True) == []
    assert sends(-1, guarded=True) == [1, 2, 3]


def test_the_kv_checksum_asserts_on_v4_upstream(hosts: Callable[[str], Any]) -> None:
    assert hosts("0.5.23").run("checksum", "upstream").value == "asserts"


def test_the_kv_checksum_covers_every_region_of_v4(hosts: Callable[[str], Any]) -> None:
    outcome = hosts("0.5.23").run("checksum", "compared")
    assert outcome.exit == 0, outcome.output
    assert outcome.value.pop("before") is False
    assert all(outcome.value.values()), outcome.value


@pytest.mark.parametrize("emitted", [1, 200, 25])
def test_the_kv_checksum_holds_for_a_request_that_decode_retracted(hosts: Callable[[str], Any], emitted: int) -> None:
    """With 25 emitted tokens prefill computes 1024, where no block of the rings is pending."""
    outcome = hosts("0.5.23").run("checksum", "retracted", prompt=1000, emitted=emitted)
    assert outcome.exit == 0, outcome.output
    assert all(outcome.value.values()), outcome.value


@pytest.mark.parametrize(("window", "text"), [(True, "request window"), (False, "MAMBA")])
def test_state_that_the_kv_checksum_cannot_cover_is_refused_at_start(
    hosts: Callable[[str], Any], window: bool, text: str
) -> None:
    outcome = hosts("0.5.23").run("checksum", "refused", window=window)
    assert outcome.exit == 0, outcome.output
    assert text in outcome.value


@pytest.mark.parametrize(
    ("damage", "lost", "status"), [(False, False, "success"), (True, False, "failed"), (False, True, "success")]
)
def test_the_index_digest_tells_damage(hosts: Callable[[str], Any], damage: bool, lost: bool, status: str) -> None:
    outcome = hosts("0.5.17").run("digest", "exchange", damage=damage, notice_lost=lost)
    assert outcome.exit == 0, outcome.output
    seen = outcome.value
    assert seen["first"], "decode waits for the notice"
    assert seen["status"] == status
    assert ("digest mismatch" in seen["reason"]) == damage
    assert not seen["room_kept"]


def test_workers_share_the_digests_rooms(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error here would end a room that nothing is wrong with."""
    monkeypatch.setattr(digest, "ROOMS", 8)
    manager, errors = SimpleNamespace(), []

    def worker(number: int) -> None:
        try:
            for count in range(3000):
                chunk = {"room": 4 * count + number, "index_slice": slice(0, 1), "prefill_kv_indices": [count]}
                digest.before_chunk(manager, SimpleNamespace(**chunk, is_last_chunk=False))
        except Exception as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=worker, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert errors == []
    assert len(vars(manager)[digest.PAGES]) == 8
