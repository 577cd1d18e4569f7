"""Situations of a whole deployment and of the operator: the router is down, nothing serves, nobody leads."""

from __future__ import annotations

from collections.abc import Iterator

from promtool_cases import (
    DAY,
    HOUR,
    LEADER,
    MINUTE,
    ROLES,
    Case,
    N,
    Series,
    canary,
    differing,
    healthy,
    loading,
    operator,
    over_time,
)
from said import (
    AT_ZERO,
    BAD_LINK,
    DECODE,
    DECODE_LOADS,
    LOADING,
    LOADS,
    NEW,
    NO_CANARY,
    NO_ROOM,
    OLD,
    PAIR,
    PAUSED,
    PREFILL,
    REFUSED,
    ROUTER,
    ROUTER_CANNOT_START,
    ROUTER_GONE,
    SERVES,
    UNPROVED,
    WAITING_ROUTER,
    ZERO,
    pod,
    says,
    workload,
)

from dsv4_operator.api.constants import ENGINE_ROLES
from dsv4_operator.plan.generations import plan_generations

ROUTER_DOWN, NOT_SERVING, OPERATOR_DOWN = {"DSV4RouterDown"}, {"DSV4NotServing"}, {"DSV4OperatorDown"}
CRASHED = "container router: CrashLoopBackOff, last exit Error with code 1"


def objects() -> Iterator[Case]:
    """All of them."""
    yield from router_down()
    yield from router_down_quiet()
    yield from router_down_beside_ill_engines()
    yield from not_serving()
    yield from not_serving_quiet()
    yield from operator_down()
    yield from operator_down_quiet()


def without(part: str) -> Series:
    """Takes away the series of a healthy pair that have this in their selector."""
    return dict.fromkeys((selector for selector in healthy(N) if part in selector), None)


def ending(part: str, samples: int) -> Series:
    """Lets the series of a healthy pair that have this in their selector end after so many samples."""
    return {
        selector: values.replace(f"x{N}", f"x{samples - 1}") + " stale"
        for selector, values in healthy(N).items()
        if values is not None and part in selector
    }


def second_decode(loads: bool = False) -> Series:
    """A decode more, that is well or loads for good."""
    return {
        selector.replace("demo-decode-0", "demo-decode-1"): values
        for selector, values in (loading("decode", N) if loads else healthy(N)).items()
        if values is not None and 'role="decode"' in selector
    }


def router_down() -> Iterator[Case]:
    """DSV4RouterDown while every canary passes."""
    yield Case(
        "the router cannot start",
        differing(N, over_time((SERVES, 20), (ROUTER_CANNOT_START, N))),
        {9: set(), 14: set(), 17: ROUTER_DOWN, 60: ROUTER_DOWN, 115: ROUTER_DOWN},
        {"alertname": "DSV4RouterDown", "severity": "critical", "namespace": "llm", "engines": "all"},
    )
    yield Case(
        "no router pod is there after a cold start",
        differing(N, *(loading(role, 90, N) for role in ROLES), over_time((LOADS, 90), (ROUTER_GONE, N))),
        {44: set(), 49: set(), 52: ROUTER_DOWN},
    )
    yield Case(
        "the router is down and its list drifts",
        differing(N, over_time((SERVES, 20), (says(*PAIR, pod(ROUTER, CRASHED), router_drift=["r: x"]), N))),
        {17: ROUTER_DOWN},
    )
    moved = {
        selector.replace('namespace="llm"', 'namespace="dsv4-system",exported_namespace="llm"'): values
        for selector, values in over_time((SERVES, 20), (ROUTER_GONE, N)).items()
    }
    yield Case(
        "the router is gone, labels not honored",
        differing(N, without("dsv4_operator_condition"), moved),
        {17: ROUTER_DOWN},
        {"alertname": "DSV4RouterDown", "namespace": "llm", "deployment": "demo"},
    )


def router_down_quiet() -> Iterator[Case]:
    """Near-misses of it."""
    yield Case(
        "the router comes back after four minutes",
        differing(N, over_time((SERVES, 20), (ROUTER_GONE, 8), (SERVES, N))),
        {13: set(), 16: set(), 40: set()},
    )
    routerless = says(*PAIR, spec={"router": {"enabled": False}})
    yield Case("no router is wanted", differing(N, over_time((routerless, N))), {10: set(), 60: set(), 115: set()})
    yield Case(
        "paused with the router down",
        differing(N, over_time((SERVES, 20), (says(*PAIR, spec=PAUSED), N))),
        {17: set(), 30: set(), 115: set()},
    )
    yield Case(
        "deleted after four minutes without a router",
        differing(N, over_time((SERVES, 20), (ROUTER_GONE, 8), (None, N))),
        {13: set(), 16: set(), 40: set()},
    )
    # The decode that leaves still answers the prefill's canary; its successor is not made yet.
    last_leaves = says(pod(PREFILL), pod(DECODE, leaving=True), pod(ROUTER))
    yield Case(
        "the only decode leaves, and the router still finds it",
        differing(N, over_time((SERVES, 20), (last_leaves, N))),
        {17: set(), 30: set()},
    )


def router_down_beside_ill_engines() -> Iterator[Case]:
    """DSV4RouterDown while one engine of several loads or fails, and near-misses."""
    two: dict[str, int] = {"wanted": 2}
    prefills = (pod(PREFILL), pod(PREFILL))
    down = says(*prefills, pod(DECODE), LOADING[DECODE], pod(ROUTER, CRASHED), **two)
    loads = second_decode(loads=True)
    yield Case(
        "the router is down while one of two decodes loads",
        differing(N, loads, over_time((SERVES, 20), (down, N))),
        {9: set(), 24: set(), 27: ROUTER_DOWN, 60: ROUTER_DOWN},
        {"alertname": "DSV4RouterDown", "severity": "critical", "deployment": "demo", "engines": "some"},
    )
    well = says(*prefills, pod(DECODE), LOADING[DECODE], pod(ROUTER), **two)
    yield Case(
        "one of two decodes loads, the router is well",
        differing(N, loads, over_time((SERVES, 20), (well, N))),
        {27: set(), 60: set()},
    )
    routerless = says(*prefills, pod(DECODE), LOADING[DECODE], spec={"router": {"enabled": False}}, **two)
    yield Case(
        "one of two decodes loads, no router is wanted",
        differing(N, loads, over_time((SERVES, 20), (routerless, N))),
        {27: set(), 60: set()},
    )
    link = says(*PAIR, pod(ROUTER, CRASHED), blame=BAD_LINK)
    yield Case(
        "the router is down, and a link is bad",
        differing(N, second_decode(), over_time((SERVES, 20), (link, N))),
        {24: set(), 27: ROUTER_DOWN},
        {"alertname": "DSV4RouterDown", "engines": "some"},
    )
    paused = says(*prefills, pod(DECODE), LOADING[DECODE], pod(ROUTER, CRASHED), spec=PAUSED, **two)
    yield Case(
        "paused with the router down and a decode that loads",
        differing(N, loads, over_time((SERVES, 20), (paused, N))),
        {27: set(), 60: set()},
    )
    yield Case(
        "a decode restarts, and the router has nobody to send to",
        differing(N, loading("decode", N), over_time((SERVES, 20), (DECODE_LOADS, N))),
        {17: set(), 27: set(), 60: set()},
    )
    # Old pods of both roles finish long requests, and their canaries pass until they end.
    drains = {canary("dsv4_canary_ready", role): f"1x{20 + 24} stale" for role in ROLES}
    fresh = {
        selector.replace(f"demo-{role}-0", f"demo-{role}-1"): values
        for role in ROLES
        for selector, values in loading(role, N).items()
        if values is not None
    }
    yield Case(
        "both roles roll at once, and the old pods drain for twelve minutes",
        differing(N, drains, fresh, over_time((SERVES, 20), (LOADS, N))),
        {16: set(), 21: set(), 27: set()},
    )
    yield Case(
        "scaled to zero, and the last pods drain for an hour",
        differing(N, over_time((SERVES, 20), (AT_ZERO, N)), *(ending(f'role="{role}"', 140) for role in ROLES)),
        {16: set(), 27: set(), 60: set(), 115: set()},
    )
    # The generation that serves fails, the next has a pair and is not whole: nothing is wrong with the router.
    generations = {
        "desired": NEW,
        "plan": plan_generations(NEW, OLD, [OLD, NEW], {}),
        "workloads": {(fp, role): workload(role, fp, 2) for fp in (OLD, NEW) for role in ENGINE_ROLES},
    }
    pods = (pod(PREFILL), LOADING[DECODE], pod(ROUTER), pod(PREFILL, fingerprint=NEW), pod(DECODE, fingerprint=NEW))
    yield Case(
        "the router is well, and the pair that passes is of the next generation",
        differing(N, over_time((SERVES, 20), (says(*pods, **two, **generations), N))),
        {27: set(), 60: set()},
    )


def not_serving() -> Iterator[Case]:
    """DSV4NotServing."""
    no_room = says(pod(PREFILL, NO_ROOM), pod(DECODE, NO_ROOM), WAITING_ROUTER)
    bare: Series = {LEADER: f"1x{N}", **over_time((no_room, N))}
    yield Case(
        "no node has room for the engines",
        bare,
        {45: set(), 89: set(), 91: NOT_SERVING, 115: NOT_SERVING},
        {"alertname": "DSV4NotServing", "severity": "critical", "namespace": "llm", "deployment": "demo"},
    )
    yield Case(
        "no node has room, and the operator is replaced in between",
        {LEADER: f"1x{N}", **over_time((no_room, 150), (None, 3), (no_room, N))},
        {80: set(), 91: NOT_SERVING},
    )
    yield Case(
        "policy refuses a spec that never ran",
        {LEADER: f"1x{N}", **over_time((says(findings=[REFUSED], desired="", plan=None, workloads={}), N))},
        {89: set(), 91: NOT_SERVING},
    )
    unproved_down = says(*PAIR, pod(ROUTER, CRASHED), spec=NO_CANARY)
    yield Case(
        "the router is down, and the canary is switched off",
        differing(N, without('container="canary"'), over_time((SERVES, 20), (unproved_down, N))),
        {30: set(), 99: set(), 102: NOT_SERVING},
    )


def not_serving_quiet() -> Iterator[Case]:
    """Near-misses of it, and what other alerts have paged for."""
    leads: Series = {LEADER: f"1x{N}"}
    yield Case(
        "a start that takes 85 minutes",
        {**leads, **over_time((LOADS, 170), (SERVES, N))},
        {80: set(), 86: set(), 91: set(), 98: set()},
    )
    yield Case("made with zero replicas", {**leads, **over_time((AT_ZERO, N))}, {60: set(), 95: set(), 115: set()})
    yield Case(
        "made with zero replicas, the canary switched off",
        {**leads, **over_time((says(WAITING_ROUTER, spec=NO_CANARY, **ZERO), N))},
        {95: set(), 115: set()},
    )
    yield Case(
        "paused while nothing serves",
        {**leads, **over_time((says(*LOADING.values(), WAITING_ROUTER, spec=PAUSED), N))},
        {60: set(), 95: set(), 115: set()},
    )
    yield Case(
        "deleted after 85 minutes of loading",
        {**leads, **over_time((LOADS, 170), (None, N))},
        {80: set(), 91: set(), 115: set()},
    )
    yield Case(
        "it serves for a minute after 80",
        {**leads, **over_time((LOADS, 160), (SERVES, 2), (LOADS, N))},
        {80: set(), 91: set(), 115: set()},
    )
    failing = {
        **{canary("dsv4_canary_ready", role): f"1x20 0x{N}" for role in ROLES},
        **{
            canary("dsv4_canary_probes_total", role, probe="echo", outcome="fail", cache="cold"): f"0x20 0+1x{N}"
            for role in ROLES
        },
    }
    fails = says(*(pod(role, "its canary has not passed") for role in ENGINE_ROLES), WAITING_ROUTER)
    yield Case(
        "every canary fails for two hours: one page, not two",
        differing(N, failing, over_time((SERVES, 20), (fails, N))),
        {15: {"DSV4CanaryFailing"}, 102: {"DSV4CanaryFailing"}, 115: {"DSV4CanaryFailing"}},
        never={"alertname": "DSV4NotServing"},
    )


def operator_down() -> Iterator[Case]:
    """DSV4OperatorDown."""
    gone = ending("dsv4_operator_", 20)
    yield Case(
        "the operator's series end",
        differing(N, gone),
        {9: set(), 19: set(), 21: OPERATOR_DOWN, 60: OPERATOR_DOWN, 115: OPERATOR_DOWN},
        {"alertname": "DSV4OperatorDown", "severity": "warning", "namespace": "dsv4-system"},
    )
    yield Case(
        "the operator runs, and nobody leads",
        differing(N, {LEADER: f"1x20 0x{N}"}),
        {19: set(), 22: OPERATOR_DOWN},
    )
    other = LEADER.replace("dsv4-system", "team-a")
    yield Case(
        "one of two operators is gone",
        differing(N, {other: "1x20 stale"}),
        {19: set(), 22: OPERATOR_DOWN},
        {"alertname": "DSV4OperatorDown", "namespace": "team-a"},
        never={"alertname": "DSV4OperatorDown", "namespace": "dsv4-system"},
    )
    yield Case(
        "the operator is gone, and no canary is wanted",
        differing(N, without('container="canary"'), over_time((UNPROVED, 20), (None, N)), {LEADER: "1x20 stale"}),
        {19: set(), 22: OPERATOR_DOWN},
    )
    long = HOUR + 3 * DAY // 2
    yield Case(
        "the operator has been gone for a day and a half",
        {LEADER: f"1x{HOUR} stale", canary("dsv4_canary_ready", "decode"): f"1x{long}"},
        {long // MINUTE: OPERATOR_DOWN},
        groups=("dsv4-canary", "dsv4-operator"),
    )


def operator_down_quiet() -> Iterator[Case]:
    """Near-misses of it."""
    yield Case(
        "the operator is not scraped",
        differing(N, without("dsv4_operator_")),
        {22: set(), 60: set(), 115: set()},
    )
    yield Case(
        "the operator is away for eight minutes",
        differing(N, over_time((SERVES, 20), (None, 16), (SERVES, N)), {LEADER: f"1x20 stale _x15 1x{N}"}),
        {17: set(), 22: set(), 40: set()},
    )
    standby = LEADER.replace("operator-0", "operator-1")
    yield Case(
        "the second replica takes over",
        differing(N, {LEADER: "1x20 stale", standby: f"0x20 1x{N}"}),
        {12: set(), 22: set(), 60: set()},
    )
    yield Case(
        "uninstalled after its deployments",
        {
            **ending("llm", 20),
            **over_time((SERVES, 20), (None, N)),
            operator("dsv4_operator_router_drift"): "0x20 stale",
            LEADER: "1x30 stale",
        },
        {12: set(), 30: set(), 60: set(), 115: set()},
    )
    yield Case(
        "nothing of ours is there",
        {'up{container="canary",namespace="shop",pod="web"}': f"1x{HOUR}"},
        {20: set(), 50: set()},
    )
