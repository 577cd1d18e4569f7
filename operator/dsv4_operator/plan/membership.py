"""Which engines are in a generation's worker list.

Rules, from what smg 1.13.0 was seen to do:
- a worker is listed only while its canary passes (its pod is Ready);
- add first, and let a worker that leaves in good health (its pod is being deleted) stay until a router reports the
  additions of its role as ready, but no longer than LINGER_SECONDS: its engine still accepts for that long;
- a worker whose canary fails goes at once;
- an address that left does not come back within READD_SECONDS: smg loses one that returns inside its drain;
- an address stands there once: smg rejects the whole file over a duplicate. A new pod at the address of a listed one
  replaces it in place (smg: away for half a second, against ten for leaving and coming back);
- emptying a role that had workers must be confirmed by a live read, so that it never happens by accident.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from dsv4_operator.api.constants import ENGINE_ROLES
from dsv4_operator.desired.workers import Worker

READD_SECONDS: Final = 10.0
LINGER_SECONDS: Final = 4.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """An engine pod as membership sees it. `leaving_for` is seconds since its deletion was asked; None if it stays."""

    worker: Worker
    ready: bool
    leaving_for: float | None = None


@dataclass(frozen=True, slots=True)
class MembershipPlan:
    """The worker list to publish. `empties` names roles that lose their last worker; `look_again` is in seconds."""

    workers: tuple[Worker, ...]
    removed: Mapping[str, float]
    empties: tuple[str, ...] = ()
    look_again: float | None = None

    def changes(self, current: Collection[Worker]) -> bool:
        """Whether anything is to be published."""
        return set(current) != set(self.workers)


def plan_membership(
    current: Collection[Worker],
    removed: Mapping[str, float],
    candidates: Collection[Candidate],
    ready_in_routers: Collection[str],
    now: float,
) -> MembershipPlan:
    """The next worker list.

    `current` and `removed` are what is published (removed: URL to unix seconds), `ready_in_routers` the URLs that
    every readable router reports as ready, `now` unix seconds.
    """
    wanted = _one_per_address((c.worker for c in candidates if c.ready and c.leaving_for is None), current)
    waits: list[float] = []
    added: set[Worker] = set()
    for worker in wanted - set(current):
        away_for = now - removed.get(worker.url, float("-inf"))
        # A departure far in the future was noted by another clock, which must not keep a worker out until then.
        if -READD_SECONDS < away_for < READD_SECONDS:
            waits.append(READD_SECONDS - away_for)
        else:
            added.add(worker)
    staying = (set(current) & wanted) | added
    next_list = set(staying)
    for candidate in candidates:
        worker = candidate.worker
        if candidate.leaving_for is None or worker not in current or not candidate.ready:
            continue
        replaced = any(w.url == worker.url for w in staying)
        succeeded = any(w.url in ready_in_routers for w in staying if w.role is worker.role)
        if not replaced and not succeeded and candidate.leaving_for < LINGER_SECONDS:
            next_list.add(worker)
            waits.append(min(1.0, LINGER_SECONDS - candidate.leaving_for))
    return MembershipPlan(
        workers=tuple(sorted(next_list)),
        removed=_removed(current, next_list, removed, now),
        empties=tuple(
            role.value
            for role in ENGINE_ROLES
            if any(w.role is role for w in current) and not any(w.role is role for w in next_list)
        ),
        look_again=min(waits, default=None),
    )


def _one_per_address(workers: Iterable[Worker], current: Collection[Worker]) -> set[Worker]:
    """Workers with distinct URLs. Two pods of one address are one that is gone and its successor: a cache can be late.

    The listed one stays until its end is seen, so that the choice does not flip from pass to pass.
    """
    chosen: dict[str, Worker] = {}
    for worker in sorted(workers, key=lambda w: (w not in current, w)):
        chosen.setdefault(worker.url, worker)
    return set(chosen.values())


def _removed(
    current: Collection[Worker], next_list: Collection[Worker], removed: Mapping[str, float], now: float
) -> dict[str, float]:
    """Departure times; old ones are forgotten only when something else changes, so that time alone writes nothing."""
    gone = {worker.url for worker in current} - {worker.url for worker in next_list}
    if not gone and set(current) == set(next_list):
        return dict(removed)
    kept = {url: when for url, when in removed.items() if now - when < READD_SECONDS}
    # Rounded up: rounded down, ten seconds would be a little less.
    return {**kept, **dict.fromkeys(gone, math.ceil(now * 10) / 10)}


def router_differences(wanted: Collection[Worker], listed: Mapping[str, str]) -> list[str]:
    """How one router's own list (URL to worker type) differs from the wanted one, in words; empty when equal."""
    target = {worker.url: worker.role.value for worker in wanted}
    differences = [f"{url} is missing" for url in sorted(target.keys() - listed.keys())]
    differences += [f"{url} should not be there" for url in sorted(listed.keys() - target.keys())]
    differences += [
        f"{url} is listed as {listed[url]}, wanted {role}"
        for url, role in sorted(target.items())
        if url in listed and listed[url] != role
    ]
    return differences
