"""Who is to blame when pairs fail: the matrix of prefill x decode, and what follows from it.

Every sidecar tests its engine with the engines of the other role, so each pair is seen from both ends. One view of a
pair is `passes`, `fails` or nothing. What follows from the whole matrix:

- a pod that fails with all its peers, while one of them passes with somebody else, is the culprit;
- a pair that fails while both its pods pass with others is a bad link;
- several prefills and several decodes that all fail with each other: the fabric, or something else that all share;
- one pair alone, or one pod with all its peers and nobody to compare it with: undecided, and said so.

Evidence from inside an engine (wedge, corruption, missing guard) names its pod, whatever the matrix says, and then
explains that pod's failures. A pass counts against a failure only when it came after the failure began: when a pod
breaks, its pairs are found out one by one, and until then the older passes of the others prove nothing. And what a
prefill has in its cache it computed earlier: a pass out of a cache proves the decode and the path, not the prefill.

Pure. Messages hold no times and no counts. Only the sidecars withdraw readiness; what is said here is words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dsv4_operator.api.constants import ENGINE_ROLES, Role
from dsv4_operator.api.v1alpha1.conditions import Reason
from dsv4_operator.api.v1alpha1.status import BlameKind
from dsv4_operator.observe.pods import PodView
from dsv4_operator.observe.reports import CanaryReport, PeerReport

_ENOUGH_FAILURES: Final = 2
"""Failures in a row, both views together, before a pair counts as failing: one odd reply accuses nobody."""
_SLOWEST_TURN: Final = 60.0
"""A sidecar's budget of tokens may stretch short intervals; until it gets round to a peer, its last word stands."""
_NEVER: Final = float("-inf")
_SHARED: Final = "the network between them, or something else that they share, is the cause"

Pair = tuple[str, str]
"""(prefill, decode), by pod name."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What is known of one pair: when it last passed, or (`failing`) when it began to fail. Unix seconds.

    `fresh`: when it last passed with a prompt that the prefill had in no cache, while it passes.
    """

    failing: bool
    time: float
    fresh: float = _NEVER


@dataclass(frozen=True, slots=True)
class Charge:
    """One finding of blame. `pods` are the accused, or those that are suspected when the kind is Undecided."""

    kind: BlameKind
    reason: Reason
    pods: tuple[str, ...]
    message: str


def blame_by_generation(
    pods: Sequence[PodView], reports: Mapping[str, CanaryReport], now: float, interval: float, timeout: float
) -> dict[str, list[Charge]]:
    """`find_blame` of each generation, by fingerprint; generations without any charge are left out."""
    found = {
        fingerprint: find_blame([p for p in pods if p.fingerprint == fingerprint], reports, now, interval, timeout)
        for fingerprint in {pod.fingerprint for pod in pods}
    }
    return {fingerprint: charges for fingerprint, charges in found.items() if charges}


def count_blame(found: Iterable[Sequence[Charge]]) -> dict[str, int]:
    """Culprit pods, links, fabric (1 or 0) and suspects over all generations, for metrics."""
    charges = [charge for generation in found for charge in generation]

    def pods(kind: BlameKind) -> int:
        return len({pod for charge in charges if charge.kind is kind for pod in charge.pods})

    return {
        "pods": pods(BlameKind.POD),
        "links": sum(charge.kind is BlameKind.LINK for charge in charges),
        "fabric": int(any(charge.kind is BlameKind.FABRIC for charge in charges)),
        "suspects": pods(BlameKind.UNDECIDED),
    }


def find_blame(
    pods: Iterable[PodView], reports: Mapping[str, CanaryReport], now: float, interval: float, timeout: float
) -> list[Charge]:
    """The charges within one generation, those with evidence first.

    Args:
        pods: engine pods of the generation.
        reports: by pod uid; pods without one, and unreachable ones, tell nothing.
        now: unix seconds.
        interval: seconds between two probes of one sidecar.
        timeout: seconds that one probe may take.
    """
    engines = sorted(
        (p for p in pods if p.role in ENGINE_ROLES and not p.is_leaving), key=lambda p: (p.role != Role.PREFILL, p.name)
    )
    evident = {pod.name: charge for pod in engines if (charge := _evidence(pod, reports.get(pod.uid))) is not None}
    cells = read_matrix(engines, reports, now, interval, timeout)
    details = {p.name: report.message for p in engines if (report := reports.get(p.uid)) is not None and report.failing}
    return [*evident.values(), *judge_matrix(cells, frozenset(evident), details)]


def read_matrix(
    engines: Sequence[PodView],
    reports: Mapping[str, CanaryReport],
    now: float,
    interval: float,
    timeout: float,
) -> dict[Pair, Cell]:
    """The pairs of which something is known. Both ends' views of a pair are made one."""
    by_address = {(pod.role, pod.ip): pod.name for pod in engines if pod.ip}
    views: dict[Pair, list[PeerReport]] = {}
    for pod in engines:
        report = reports.get(pod.uid)
        if report is None or not report.reachable:
            continue
        # A sidecar tests one peer at a time, in rotation; twice around without news is too old.
        oldest = now - max(2 * interval, _SLOWEST_TURN) * max(1, len(report.peers)) - timeout
        for peer in report.peers:
            other = by_address.get((pod.role.peer, peer.address))
            if other is None or peer.outcome not in ("Pass", "Fail") or peer.last_probe_time < oldest:
                continue
            pair = (pod.name, other) if pod.role is Role.PREFILL else (other, pod.name)
            views.setdefault(pair, []).append(peer)
    return {pair: cell for pair, seen in views.items() if (cell := _combine(seen)) is not None}


def _combine(views: Sequence[PeerReport]) -> Cell | None:
    """One cell from the views of both ends; None when they do not add up to knowledge."""
    passed = [view for view in views if view.failing_since is None]
    fresh = max((view.last_success_time or _NEVER for view in passed), default=_NEVER)
    failed = [view for view in views if view.failing_since is not None]
    began = min((view.failing_since for view in failed if view.failing_since is not None), default=None)
    if began is None or fresh >= began:
        # A pass within the run of failures that the other end sees: the path works, if not always.
        return Cell(failing=False, time=max(view.last_probe_time for view in passed), fresh=fresh)
    enough = sum(view.consecutive_failures for view in failed) >= _ENOUGH_FAILURES
    return Cell(failing=True, time=began) if enough else None


def judge_matrix(
    cells: Mapping[Pair, Cell],
    explained: frozenset[str] = frozenset(),
    details: Mapping[str, str] | None = None,
) -> list[Charge]:
    """What follows from the matrix. `explained` pods are accused already, and their failures are accounted for;
    `details` are what sidecars say, by pod name."""
    failing = {pair: cell.time for pair, cell in cells.items() if cell.failing and not explained & set(pair)}
    last_pass: dict[str, float] = {}
    for pair, cell in cells.items():
        for pod, time in zip(pair, (cell.fresh, cell.time), strict=True) if not cell.failing else ():
            last_pass[pod] = max(time, last_pass.get(pod, time))

    def alive(pod: str, since: float) -> bool:
        return last_pass.get(pod, _NEVER) >= since

    def is_culprit(pod: str, side: int) -> bool:
        mine = {pair: since for pair, since in failing.items() if pair[side] == pod}
        return pod not in last_pass and any(alive(pair[1 - side], since) for pair, since in mine.items())

    charges = []
    culprits = set()
    for side, role in enumerate(ENGINE_ROLES):
        for pod in sorted({pair[side] for pair in failing}):
            if is_culprit(pod, side):
                culprits.add(pod)
                peers = sorted(pair[1 - side] for pair in failing if pair[side] == pod)
                charges.append(_culprit(pod, role, peers, (details or {}).get(pod, "")))
    rest = {pair: since for pair, since in failing.items() if not culprits & set(pair)}
    links = sorted(pair for pair, since in rest.items() if all(alive(pod, since) for pod in pair))
    charges += [_link(*pair) for pair in links]
    for group in _components(set(rest) - set(links)):
        charges.append(_group(group, last_pass))
    return sorted(charges, key=lambda charge: list(BlameKind).index(charge.kind))


def _components(pairs: set[Pair]) -> list[tuple[list[str], list[str]]]:
    """Connected groups of failing pairs, as (prefills, decodes)."""
    groups: list[tuple[set[str], set[str]]] = []
    for prefill, decode in sorted(pairs):
        mine: tuple[set[str], set[str]] = ({prefill}, {decode})
        apart = []
        for group in groups:
            if group[0] & mine[0] or group[1] & mine[1]:
                mine = (mine[0] | group[0], mine[1] | group[1])
            else:
                apart.append(group)
        groups = [*apart, mine]
    return sorted((sorted(prefills), sorted(decodes)) for prefills, decodes in groups)


def _evidence(pod: PodView, report: CanaryReport | None) -> Charge | None:
    if report is None or report.own_fault is None:
        return None
    what = {
        Reason.ENGINE_WEDGED: "is wedged although its health check is green" if report.engine_healthy else "is wedged",
        Reason.CORRUPTION: "returns corrupt answers",
        Reason.GUARD_MISSING: "runs an engine that does not show the guard which the spec needs",
    }[report.own_fault]
    detail = f": {report.fault_message}" if report.fault_message else ""
    return Charge(BlameKind.POD, report.own_fault, (pod.name,), f"{pod.role.value} pod {pod.name} {what}{detail}")


def _culprit(pod: str, role: Role, peers: Sequence[str], detail: str) -> Charge:
    if len(peers) == 1:
        what = f"fails with {role.peer.value} pod {peers[0]}, which passes with another {role.value}"
    else:
        what = f"fails with every {role.peer.value}, while they pass with another {role.value}"
    text = f"{role.value} pod {pod} {what}{f': {detail}' if detail else ''}"
    return Charge(BlameKind.POD, Reason.CANARY_FAILING, (pod,), text)


def _link(prefill: str, decode: str) -> Charge:
    text = f"link {prefill} - {decode} fails, while both pods pass with others: they stay in the router"
    return Charge(BlameKind.LINK, Reason.BAD_LINK, (prefill, decode), text)


def _group(group: tuple[list[str], list[str]], last_pass: Mapping[str, float]) -> Charge:
    """Failing pairs that no culprit and no bad link explains."""
    prefills, decodes = group
    pods = (*prefills, *decodes)
    together = f"prefill {_pods(prefills)} and decode {_pods(decodes)} fail together"
    if any(pod in last_pass for pod in pods):
        text = f"{together}; which of them is the cause shows when their other pairs have been tested again"
        return Charge(BlameKind.UNDECIDED, Reason.CANARY_FAILING, pods, text)
    if len(prefills) > 1 and len(decodes) > 1:
        text = f"fabric: no prefill reaches any decode: {_SHARED}"
        if last_pass:
            text = f"fabric: prefill {_pods(prefills)} reach none of the decode {_pods(decodes)}: {_SHARED}"
        return Charge(BlameKind.FABRIC, Reason.FABRIC_FAILING, pods, text)
    if len(pods) == 2:
        text = f"{together}, and no other pair tells which of them is the cause, or whether the link is"
        return Charge(BlameKind.UNDECIDED, Reason.CANARY_FAILING, pods, text)
    role, pod = (Role.PREFILL, prefills[0]) if len(prefills) == 1 else (Role.DECODE, decodes[0])
    text = (
        f"{role.value} pod {pod} fails with every {role.peer.value}, and no other {role.value} was tested with them: "
        "it, or something that all share, is the cause"
    )
    return Charge(BlameKind.UNDECIDED, Reason.CANARY_FAILING, (pod,), text)


def _pods(names: Sequence[str]) -> str:
    return f"{'pod' if len(names) == 1 else 'pods'} {', '.join(names)}"
