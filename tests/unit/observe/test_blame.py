"""From what the sidecars say of their pairs to who is to blame: exactly one bad pod is named and nobody else."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dsv4_operator.api.constants import Role
from dsv4_operator.api.v1alpha1.conditions import Reason
from dsv4_operator.api.v1alpha1.status import BlameKind
from dsv4_operator.observe.blame import (
    Cell,
    Charge,
    blame_by_generation,
    count_blame,
    find_blame,
    judge_matrix,
    read_matrix,
)
from dsv4_operator.observe.pods import PodView
from dsv4_operator.observe.reports import CanaryReport, PeerReport, read_report, unreachable

P, D = Role.PREFILL, Role.DECODE
NOW, INTERVAL, TIMEOUT = 10_000.0, 30.0, 60.0
BEGAN, AFTER, BEFORE = 9_900.0, 9_950.0, 9_800.0
POD, LINK, FABRIC, UNDECIDED = BlameKind.POD, BlameKind.LINK, BlameKind.FABRIC, BlameKind.UNDECIDED


def matrix(rows: dict[str, str]) -> dict[tuple[str, str], Cell]:
    """`{"p1": "+-? "}`: + passes since, o passed before the trouble, c since then only out of the cache, - fails,
    anything else unknown; by decode."""
    known = {
        "+": Cell(False, AFTER, AFTER),
        "o": Cell(False, BEFORE, BEFORE),
        "c": Cell(False, AFTER, BEFORE),
        "-": Cell(True, BEGAN),
    }
    return {
        (prefill, f"d{number}"): known[sign]
        for prefill, signs in rows.items()
        for number, sign in enumerate(signs, 1)
        if sign in known
    }


def charged(charges: Iterable[Charge]) -> list[tuple[BlameKind, tuple[str, ...]]]:
    return [(charge.kind, charge.pods) for charge in charges]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param({}, [], id="nothing known"),
        pytest.param({"p1": "++", "p2": "++"}, [], id="all pass"),
        pytest.param({"p1": "+?", "p2": "?+"}, [], id="unknown is no failure"),
        pytest.param({"p1": "--", "p2": "++", "p3": "++"}, [(POD, ("p1",))], id="one bad prefill of three"),
        pytest.param({"p1": "-+", "p2": "-+"}, [(POD, ("d1",))], id="one bad decode"),
        pytest.param({"p1": "-+", "p2": "++"}, [(LINK, ("p1", "d1"))], id="bad link"),
        pytest.param({"p1": "-++", "p2": "+-+", "p3": "+++"}, [(LINK, ("p1", "d1")), (LINK, ("p2", "d2"))], id="two"),
        pytest.param({"p1": "---", "p2": "-++", "p3": "-++"}, [(POD, ("p1",)), (POD, ("d1",))], id="one of each role"),
        pytest.param({"p1": "---", "p2": "-++", "p3": "+++"}, [(POD, ("p1",)), (LINK, ("p2", "d1"))], id="pod, link"),
        pytest.param({"p1": "--", "p2": "--"}, [(FABRIC, ("p1", "p2", "d1", "d2"))], id="fabric"),
        pytest.param({"p1": "--", "p2": "-?"}, [(FABRIC, ("p1", "p2", "d1", "d2"))], id="fabric as far as is known"),
        pytest.param(
            {"p1": "--??", "p2": "--??", "p3": "??++"}, [(FABRIC, ("p1", "p2", "d1", "d2"))], id="part of the fabric"
        ),
        pytest.param({"p1": "-"}, [(UNDECIDED, ("p1", "d1"))], id="one pair alone"),
        pytest.param({"p1": "---"}, [(UNDECIDED, ("p1",))], id="one prefill, nothing to compare it with"),
        pytest.param({"p1": "-", "p2": "-"}, [(UNDECIDED, ("d1",))], id="one decode, nothing to compare it with"),
        pytest.param({"p1": "-+"}, [(POD, ("d1",))], id="one prefill, one of two decodes"),
        # -- a pod breaks, and its pairs are found out one by one
        pytest.param({"p1": "-o", "p2": "oo"}, [(UNDECIDED, ("p1", "d1"))], id="first pair found"),
        pytest.param({"p1": "-o", "p2": "++"}, [(UNDECIDED, ("p1", "d1"))], id="its other pair not tested since"),
        pytest.param({"p1": "--", "p2": "oo"}, [(UNDECIDED, ("p1", "d1", "d2"))], id="nobody else tested since"),
        pytest.param({"p1": "--", "p2": "+o"}, [(POD, ("p1",))], id="one peer passes with another"),
        # -- what a prefill has in its cache it computed while it was sound
        pytest.param(
            {"p1": "-c", "p2": "++"}, [(UNDECIDED, ("p1", "d1"))], id="a cached pass does not clear a prefill"
        ),
        pytest.param({"p1": "--", "p2": "co"}, [(POD, ("p1",))], id="a cached pass does clear a decode"),
        pytest.param({"p1": "-?", "p2": "-c"}, [(UNDECIDED, ("p1", "p2", "d1"))], id="nor accuse one"),
        pytest.param({"p1": "-?", "p2": "++"}, [(POD, ("p1",))], id="fails with the only peer that it was tested with"),
    ],
)
def test_matrix(rows: dict[str, str], expected: list[tuple[BlameKind, tuple[str, ...]]]) -> None:
    assert charged(judge_matrix(matrix(rows))) == expected


def test_evidence_explains_the_failures_of_its_pod_and_its_passes_still_prove() -> None:
    assert judge_matrix(matrix({"p1": "-", "p2": "-"}), frozenset({"d1"})) == []
    cells = matrix({"p1": "+-", "p2": "--"})
    assert charged(judge_matrix(cells, frozenset({"p1"}))) == [(POD, ("p2",))]


# -- any matrix

NAMES = st.tuples(st.integers(2, 5), st.integers(2, 5)).map(
    lambda size: ([f"p{n}" for n in range(size[0])], [f"d{n}" for n in range(size[1])])
)


def full(prefills: list[str], decodes: list[str], bad: Collection[str | tuple[str, str]]) -> dict[Any, Cell]:
    return {
        (p, d): Cell(True, BEGAN) if bad & {p, d, (p, d)} else Cell(False, AFTER, AFTER)  # type: ignore[operator]
        for p in prefills
        for d in decodes
    }


@given(NAMES, st.data())
def test_one_bad_pod_is_named_and_nobody_else(names: tuple[list[str], list[str]], data: st.DataObject) -> None:
    prefills, decodes = names
    bad = data.draw(st.sampled_from([*prefills, *decodes]))
    cells = full(prefills, decodes, {bad})
    # Pairs of the others may be unknown, as long as two of each role are known to each other.
    role = prefills if bad in prefills else decodes
    kept = (
        {bad, data.draw(st.sampled_from([pod for pod in role if pod != bad]))},
        set(data.draw(st.permutations(decodes if role is prefills else prefills))[:2]),
    )
    optional = sorted(pair for pair in cells if not all(any(pod in group for group in kept) for pod in pair))
    for pair in data.draw(st.sets(st.sampled_from(optional))) if optional else ():
        del cells[pair]
    assert charged(judge_matrix(cells)) == [(POD, (bad,))]


@given(NAMES, st.data())
def test_one_bad_link_is_named_and_no_pod(names: tuple[list[str], list[str]], data: st.DataObject) -> None:
    prefills, decodes = names
    pair = (data.draw(st.sampled_from(prefills)), data.draw(st.sampled_from(decodes)))
    assert charged(judge_matrix(full(prefills, decodes, {pair}))) == [(LINK, pair)]


@given(NAMES)
def test_when_all_fails_it_is_the_fabric(names: tuple[list[str], list[str]]) -> None:
    prefills, decodes = names
    (charge,) = judge_matrix(full(prefills, decodes, {*prefills}))
    assert (charge.kind, charge.pods) == (FABRIC, (*prefills, *decodes))
    assert "no prefill reaches any decode" in charge.message


CELLS = st.dictionaries(
    st.tuples(st.sampled_from("abcd"), st.sampled_from("wxyz")),
    st.builds(Cell, st.booleans(), st.sampled_from([BEFORE, BEGAN, AFTER])),
)


@settings(max_examples=500)
@given(CELLS, st.sets(st.sampled_from("abcdwxyz"), max_size=2))
def test_every_failure_is_explained_and_who_passes_is_no_culprit(
    cells: dict[tuple[str, str], Cell], explained: set[str]
) -> None:
    charges = judge_matrix(cells, frozenset(explained))
    accused = {pod for charge in charges for pod in charge.pods} | explained
    passing = {pod for pair, cell in cells.items() for pod in pair if not cell.failing}
    for pair, cell in cells.items():
        assert not cell.failing or accused & set(pair)
    failing = {pod for pair, cell in cells.items() if cell.failing for pod in pair}
    for charge in charges:
        assert set(charge.pods) <= failing - explained
        if charge.kind in (POD, FABRIC):
            assert not passing & set(charge.pods)
        if charge.kind is LINK:
            assert set(charge.pods) <= passing


@given(CELLS, st.randoms())
def test_the_order_of_what_was_seen_does_not_matter(cells: dict[tuple[str, str], Cell], random: Any) -> None:
    shuffled = list(cells.items())
    random.shuffle(shuffled)
    assert judge_matrix(dict(shuffled)) == judge_matrix(cells)


# -- from reports to the matrix


def pod(name: str, **changes: Any) -> PodView:
    role = P if name.startswith("p") else D
    values: dict[str, Any] = {
        "name": name,
        "uid": f"uid-{name}",
        "role": role,
        "fingerprint": "0",
        "ip": f"10.0.{0 if role is P else 1}.{name[1:]}",
        "ready": True,
        "engine_started": True,
        "waits_for": "",
        "unschedulable": "",
        "delete_requested_at": None,
        "workers_digest": "",
    }
    return PodView(**(values | changes))


PODS = [pod(name) for name in ("p1", "p2", "d1", "d2")]


def peer(name: str, outcome: str = "Pass", **changes: Any) -> dict[str, Any]:
    seen: dict[str, Any] = {"address": pod(name).ip, "outcome": outcome, "lastProbeTime": AFTER, "signatures": []}
    seen["lastSuccessTime"] = changes.get("lastProbeTime", AFTER)
    if outcome == "Fail":
        seen |= {"consecutiveFailures": 2, "lastSuccessTime": BEFORE, "message": "wrong"}
    return seen | changes


def says(*peers: dict[str, Any], **changes: Any) -> CanaryReport:
    return read_report({"ready": True, "reason": "Passing", "message": "m", "peers": list(peers)} | changes)


def read(reports: dict[str, CanaryReport], pods: list[PodView] = PODS) -> dict[tuple[str, str], bool]:
    by_uid = {f"uid-{name}": report for name, report in reports.items()}
    return {pair: cell.failing for pair, cell in read_matrix(pods, by_uid, NOW, INTERVAL, TIMEOUT).items()}


FAILS, PASSES = {("p1", "d1"): True}, {("p1", "d1"): False}


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        pytest.param({"p1": says(peer("d1"))}, PASSES, id="one end passes"),
        pytest.param({"d1": says(peer("p1", "Fail"))}, FAILS, id="one end fails"),
        pytest.param({"p1": says(peer("d1", "Fail", consecutiveFailures=1))}, {}, id="one failure is not enough"),
        pytest.param(
            {
                "p1": says(peer("d1", "Fail", consecutiveFailures=1)),
                "d1": says(peer("p1", "Fail", consecutiveFailures=1)),
            },
            FAILS,
            id="one at each end is",
        ),
        pytest.param(
            {"p1": says({"address": "10.0.1.1", "outcome": "Fail", "lastProbeTime": AFTER})},
            FAILS,
            id="a sidecar that does not count is believed",
        ),
        pytest.param(
            {
                "p1": says(peer("d1", "Fail", lastSuccessTime=AFTER - 20)),
                "d1": says(peer("p1", lastProbeTime=AFTER - 30)),
            },
            FAILS,
            id="the other end's pass is older than the failures",
        ),
        pytest.param(
            {"p1": says(peer("d1", "Fail")), "d1": says(peer("p1", lastProbeTime=AFTER - 1))},
            PASSES,
            id="the other end passes in between",
        ),
        pytest.param(
            {
                "p1": says(peer("d1", "Fail")),
                "d1": says(peer("p1", lastProbeTime=AFTER - 1, lastSuccessTime=BEFORE - 1)),
            },
            FAILS,
            id="the other end passes in between, but out of a cache",
        ),
        pytest.param(
            {
                "p1": says(peer("d1", "Fail", failingSince=AFTER - 20)),
                "d1": says(peer("p1", lastProbeTime=AFTER - 30)),
            },
            FAILS,
            id="the sidecar's word on when it began comes first",
        ),
        pytest.param({"p1": says(peer("d1", "Busy"))}, {}, id="busy"),
        pytest.param({"p1": says(peer("d1", "Loading"))}, {}, id="loading"),
        pytest.param({"p1": says(peer("d1", "Unreachable"))}, {}, id="unreachable"),
        pytest.param({"p1": says(peer("d1", "Fail", lastProbeTime=NOW - 121))}, {}, id="stale"),
        pytest.param({"p1": says(peer("d1", "Fail", lastProbeTime=NOW - 119))}, FAILS, id="not yet stale"),
        pytest.param(
            {"p1": says(peer("d1", "Fail", lastProbeTime=NOW - 179), peer("d2"))},
            {**FAILS, ("p1", "d2"): False},
            id="with two peers a round takes longer",
        ),
        pytest.param({"p1": says(peer("d1", "Fail", lastProbeTime=None))}, {}, id="never probed"),
        pytest.param({"p1": says(peer("d1", address="10.9.9.9"))}, {}, id="nobody of that address"),
        pytest.param({"p1": says(peer("p2"))}, {}, id="an address of its own role"),
        pytest.param({"p1": unreachable("no answer")}, {}, id="no report"),
        pytest.param({"p1": says(peer("d1", "Fail", consecutiveFailures=float("inf")))}, FAILS, id="no number"),
    ],
)
def test_views_become_cells(reports: dict[str, CanaryReport], expected: dict[tuple[str, str], bool]) -> None:
    assert read(reports) == expected


def test_when_failing_began_is_read_from_the_history() -> None:
    history = [
        {"peer": "10.0.1.1", "outcome": outcome, "time": time}
        for time, outcome in (
            (100.0, "Fail"),
            (200.0, "Pass"),
            (300.0, "Fail"),
            (350.0, "Busy"),
            (400.0, "Fail"),
        )
    ]
    history.append({"peer": "10.0.1.2", "outcome": "Fail", "time": 250.0})
    (seen,) = says(peer("d1", "Fail", lastProbeTime=400.0, lastSuccessTime=200.0), history=history).peers
    assert seen.failing_since == 300.0
    (seen,) = says(peer("d1", "Fail", lastProbeTime=400.0, lastSuccessTime=None), history=[]).peers
    assert seen.failing_since == 400.0, "nothing tells: not before the failure that is known"


def test_a_short_interval_makes_nothing_stale_that_a_budget_may_hold_back() -> None:
    report = {"uid-p1": says(peer("d1", "Fail", lastProbeTime=NOW - 60))}
    assert read_matrix(PODS, report, NOW, interval=2.0, timeout=1.0)


def test_pods_of_one_host_are_told_apart_by_role() -> None:
    host = [pod("p1", ip="10.1.1.1"), pod("d1", ip="10.1.1.1")]
    reports = {"p1": says(peer("d1", "Fail", address="10.1.1.1")), "d1": says(peer("p1", "Fail", address="10.1.1.1"))}
    assert read(reports, host) == FAILS


def test_a_pod_that_leaves_is_no_part_of_the_matrix() -> None:
    leaving = [replace(p, delete_requested_at=1.0) if p.name == "d1" else p for p in PODS]
    reports = {"uid-p1": says(peer("d1", "Fail"))}
    assert find_blame(leaving, reports, NOW, INTERVAL, TIMEOUT) == []


def test_generations_are_apart_and_counted_together() -> None:
    old = [replace(p, fingerprint="1", uid=f"old-{p.uid}") for p in PODS]
    one_bad = {"p1": says(peer("d1", "Fail"), peer("d2", "Fail")), "p2": says(peer("d1"), peer("d2"))}
    reports = {f"uid-{name}": report for name, report in one_bad.items()}
    reports |= {"old-uid-p1": says(peer("d1", "Fail"), peer("d2")), "old-uid-p2": says(peer("d1"), peer("d2"))}
    found = blame_by_generation([*PODS, *old], reports, NOW, INTERVAL, TIMEOUT)
    assert {fp: charged(charges) for fp, charges in found.items()} == {
        "0": [(POD, ("p1",))],
        "1": [(LINK, ("p1", "d1"))],
    }
    assert count_blame(found.values()) == {"pods": 1, "links": 1, "fabric": 0, "suspects": 0}
    assert blame_by_generation(PODS, {}, NOW, INTERVAL, TIMEOUT) == {}


# -- the words


def blamed(reports: dict[str, CanaryReport], pods: list[PodView] = PODS) -> list[Charge]:
    return find_blame(pods, {f"uid-{name}": report for name, report in reports.items()}, NOW, INTERVAL, TIMEOUT)


def test_a_culprit_in_words() -> None:
    fails = {"ready": False, "reason": "TransferFailed", "message": "no KV arrived"}
    reports = {
        "p1": says(peer("d1", "Fail"), peer("d2", "Fail"), **fails),
        "p2": says(peer("d1"), peer("d2")),
        "d1": says(peer("p1", "Fail"), peer("p2")),
        "d2": says(peer("p1", "Fail"), peer("p2")),
    }
    text = "prefill pod p1 fails with every decode, while they pass with another prefill: no KV arrived"
    assert blamed(reports) == [Charge(POD, Reason.CANARY_FAILING, ("p1",), text)]


def test_a_bad_link_in_words() -> None:
    reports = {"p1": says(peer("d1", "Fail"), peer("d2")), "p2": says(peer("d1"), peer("d2"))}
    text = "link p1 - d1 fails, while both pods pass with others: they stay in the router"
    assert blamed(reports) == [Charge(LINK, Reason.BAD_LINK, ("p1", "d1"), text)]


def fault(reason: str, **fields: Any) -> dict[str, Any]:
    return {"ready": False, "reason": reason, "message": "the verdict", "engine": {"healthy": True}} | fields


@pytest.mark.parametrize(
    ("fields", "reason", "text"),
    [
        pytest.param(
            fault(
                "EngineWedged", wedge={"wedged": True, "kind": "generation", "message": "requests run, no token came"}
            ),
            Reason.ENGINE_WEDGED,
            "decode pod d1 is wedged although its health check is green: requests run, no token came",
            id="wedge",
        ),
        pytest.param(
            fault("EngineWedged", engine={"healthy": False}),
            Reason.ENGINE_WEDGED,
            "decode pod d1 is wedged: the verdict",
            id="wedge, unhealthy, and the verdict's own words",
        ),
        pytest.param(
            {"ready": True, "reason": "Passing", "wedge": {"wedged": True, "message": "the queue stands"}},
            Reason.ENGINE_WEDGED,
            "decode pod d1 is wedged: the queue stands",
            id="wedge, not yet acted on",
        ),
        pytest.param(
            fault("Corruption", corruption={"verdict": "Confirmed", "cache": "host", "message": "only from host"}),
            Reason.CORRUPTION,
            "decode pod d1 returns corrupt answers: only from host",
            id="corruption",
        ),
        pytest.param(
            fault("GuardMissing", guard={"required": True, "present": False, "message": "no marker in /metrics"}),
            Reason.GUARD_MISSING,
            "decode pod d1 runs an engine that does not show the guard which the spec needs: no marker in /metrics",
            id="guard",
        ),
    ],
)
def test_evidence_decides_where_the_matrix_cannot(fields: dict[str, Any], reason: Reason, text: str) -> None:
    one_pair = [pod("p1"), pod("d1")]
    without = {"p1": says(peer("d1", "Fail")), "d1": says(peer("p1", "Fail"))}
    assert charged(blamed(without, one_pair)) == [(UNDECIDED, ("p1", "d1"))]
    reports = without | {"d1": says(peer("p1", "Fail"), **fields)}
    assert blamed(reports, one_pair) == [Charge(POD, reason, ("d1",), text)]


@pytest.mark.parametrize(
    "fields",
    [
        {"corruption": {"verdict": "Suspected", "message": "m"}},
        # A decode sees the damage that its prefill does, and is not the cause.
        {"ready": True, "reason": "Passing", "corruption": {"verdict": "Confirmed", "cache": "host", "message": "m"}},
        {"guard": {"required": True, "present": False, "message": "m"}, "ready": False, "reason": "EngineLoading"},
        {"wedge": {"wedged": False, "message": "m"}},
        {"wedge": "nonsense", "corruption": ["x"], "guard": None},
    ],
)
def test_what_is_no_evidence(fields: dict[str, Any]) -> None:
    assert blamed({"p1": says(**fields)}) == []


WORDS = st.sampled_from(["", "Fail", "10.0.1.1", "a\nb"])
SCALARS = st.none() | st.booleans() | st.floats() | WORDS
JSON = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(WORDS, SCALARS, max_size=2)
FIELDS = ("ready", "reason", "message", "engine", "peers", "history", "wedge", "corruption", "guard", "lastSuccessTime")
PEER_FIELDS = (
    "address",
    "outcome",
    "lastProbeTime",
    "consecutiveFailures",
    "lastSuccessTime",
    "failingSince",
    "peer",
    "time",
)


@settings(max_examples=300)
@given(
    st.dictionaries(st.sampled_from(FIELDS), JSON),
    st.lists(st.dictionaries(st.sampled_from(PEER_FIELDS), JSON), max_size=4),
)
def test_any_report_is_read(status: dict[str, Any], peers: list[dict[str, Any]]) -> None:
    report = read_report({"peers": peers, "history": peers} | status)
    assert "\n" not in report.message
    find_blame(PODS, {"uid-p1": report}, NOW, INTERVAL, TIMEOUT)


@given(st.lists(st.sampled_from(["p1", "p2", "d1", "d2"]), unique=True), st.floats(0, 40), st.integers(2, 900))
def test_words_do_not_move_with_time(failing: list[str], later: float, failures: int) -> None:
    assume(later)

    def told(by: float, count: int) -> list[Charge]:
        def view(name: str, other: str) -> dict[str, Any]:
            bad = name in failing or other in failing
            failures = {"consecutiveFailures": count} if bad else {}
            return peer(other, "Fail" if bad else "Pass", lastProbeTime=AFTER + by, **failures)

        reports = {p.name: says(*(view(p.name, q.name) for q in PODS if q.role is not p.role)) for p in PODS}
        return blamed(reports)

    assert told(0.0, 2) == told(later, failures)


def test_a_peer_report_says_since_when_only_while_it_fails() -> None:
    report = says(peer("d1"), peer("d2", "Fail"))
    assert report.peers[0] == PeerReport("10.0.1.1", "Pass", AFTER, last_success_time=AFTER)
    assert report.peers[1].failing_since == BEFORE
