"""The situations. Every alert fires in one at least and is silent in a near-miss of it."""

from __future__ import annotations

from collections.abc import Iterator

from promtool_cases import (
    COLD_START,
    HOUR,
    LEADER,
    MINUTE,
    ROLES,
    Case,
    N,
    Series,
    canary,
    differing,
    engine,
    healthy,
    live,
    loading,
    operator,
    over_time,
)
from said import (
    AT_ZERO,
    DECODE,
    DECODE_LOADS,
    LOADS,
    OLD,
    PAIR,
    PAUSED,
    PREFILL,
    ROUTER,
    SERVES,
    UNPROVED,
    WAITING_ROUTER,
    pod,
    says,
    workload,
)
from situations_objects import objects


def quiet() -> Iterator[Case]:
    """Situations in which nobody may be alerted."""
    yield Case("a healthy pair", healthy(N), {5: set(), 30: set(), 110: set()})
    yield Case("a healthy pair, other spelling", healthy(N, "sglang_"), {30: set(), 110: set()})
    yield Case(
        "a cold start of 45 minutes",
        differing(
            N,
            loading("prefill", COLD_START, N),
            loading("decode", COLD_START, N),
            over_time((LOADS, COLD_START), (SERVES, N)),
        ),
        {1: set(), 10: set(), 20: set(), 44: set(), 46: set(), 60: set()},
    )
    yield Case(
        "a peer loads for 45 minutes beside a pod that is up",
        differing(
            N,
            loading("decode", COLD_START, N),
            {
                canary("dsv4_canary_ready", "prefill"): f"0x{COLD_START} 1x{N}",
                canary("dsv4_canary_peer_result", "prefill", peer="10.0.0.9"): f"-1x{COLD_START} 1x{N}",
                canary("dsv4_canary_last_success_timestamp_seconds", "prefill"): (
                    f"0x{COLD_START} {COLD_START * 30}+30x{N}"
                ),
            },
            over_time((DECODE_LOADS, COLD_START), (SERVES, N)),
        ),
        {10: set(), 30: set(), 44: set(), 46: set(), 60: set()},
    )
    yield Case(
        "the engine of a pod restarts and loads for 45 minutes",
        differing(
            N,
            {
                canary("dsv4_canary_engine_healthy", "decode"): f"1x20 0x{COLD_START} 1x{N}",
                canary("dsv4_canary_ready", "decode"): f"1x20 0x{COLD_START} 1x{N}",
                canary("dsv4_canary_ready", "prefill"): f"1x20 0x{COLD_START} 1x{N}",
                canary("dsv4_canary_peer_result", "prefill", peer="10.0.0.9"): f"1x20 -1x{COLD_START} 1x{N}",
                **{
                    canary("dsv4_canary_last_success_timestamp_seconds", role): (
                        f"1+30x20 600x{COLD_START} {600 + COLD_START * 30}+30x{N}"
                    )
                    for role in ROLES
                },
                **{
                    selector: f"{values.replace(f'x{N}', 'x20')} _x{COLD_START} {values.replace(f'x{N}', f'x{N}')}"
                    for selector, values in healthy(N).items()
                    if values and 'container="engine"' in selector and 'role="decode"' in selector
                },
            },
            over_time((SERVES, 20), (DECODE_LOADS, COLD_START), (SERVES, N)),
        ),
        {12: set(), 25: set(), 40: set(), 55: set(), 70: set()},
    )
    yield Case(
        "scaled to zero, for good",
        {
            **{
                selector: values.replace(f"x{N}", "x40") + " stale"
                for selector, values in healthy(N).items()
                if values is not None
            },
            **over_time((SERVES, 40), (AT_ZERO, N)),
            operator("dsv4_operator_router_drift"): f"0x{N}",
            LEADER: f"1x{N}",
        },
        {19: set(), 22: set(), 40: set(), 115: set()},
    )
    yield Case(
        "busy for 40 minutes: probes find no room, tokens flow",
        differing(
            N,
            *(
                {
                    canary("dsv4_canary_peer_result", role, peer="10.0.0.9"): f"1x20 -3x{40 * MINUTE} 1x{N}",
                    canary("dsv4_canary_probes_total", role, probe="echo", outcome="busy", cache="cold"): (
                        f"0x20 0+1x{40 * MINUTE} 80x{N}"
                    ),
                    canary("dsv4_canary_last_success_timestamp_seconds", role): (
                        f"1+30x20 600x{40 * MINUTE} 3000+30x{N}"
                    ),
                    engine("sglang:num_running_reqs", role, tp_rank="0"): f"200x{N}",
                }
                for role in ROLES
            ),
        ),
        {12: set(), 20: set(), 30: set(), 45: set(), 60: set()},
    )
    yield Case(
        "the canary is switched off",
        {
            **{selector: values for selector, values in healthy(N).items() if 'container="canary"' not in selector},
            **over_time((UNPROVED, N)),
        },
        {20: set(), 110: set()},
    )


def corruption() -> Iterator[Case]:
    """DSV4Corruption and DSV4CorruptionSuspected."""
    confirmed = {
        canary("dsv4_canary_corruption_verdict", "prefill"): f"0x20 1x10 2x{N}",
        canary("dsv4_canary_window_failures", "prefill", cache="host"): f"0x20 2x10 6x{N}",
        canary("dsv4_canary_corruption_ratio", "prefill", cache="host"): f"0x20 0.1x10 0.3x{N}",
    }
    yield Case(
        "confirmed by the canary",
        differing(N, confirmed),
        {9: set(), 17: {"DSV4Corruption"}, 60: {"DSV4Corruption"}},
        {"alertname": "DSV4Corruption", "severity": "critical", "pod": "demo-prefill-0", "deployment": "demo"},
    )
    other = {
        selector.replace("demo-prefill-0", "demo-prefill-1"): values
        for selector, values in healthy(N).items()
        if 'role="prefill"' in selector
    }
    out_of_service = {
        canary("dsv4_canary_ready", "prefill"): f"1x30 0x{N}",
        canary("dsv4_canary_probes_total", "prefill", probe="echo", outcome="fail", cache="host"): f"0x20 0+1x{N}",
    }
    yield Case(
        "a corrupt pod beside a sound one: one page, not two",
        differing(N, other, confirmed, out_of_service),
        {25: {"DSV4Corruption"}},
    )
    suspected = {
        canary("dsv4_canary_corruption_verdict", "prefill"): f"0x20 1x{N}",
        canary("dsv4_canary_window_failures", "prefill", cache="host"): f"0x20 2x{N}",
    }
    yield Case("suspected", differing(N, suspected), {13: set(), 17: {"DSV4CorruptionSuspected"}})
    odd = {
        canary("dsv4_canary_corruption_verdict", "prefill"): f"0x20 1x30 0x{N}",
        canary("dsv4_canary_window_failures", "prefill", cache="host"): f"0x20 1x30 0x{N}",
        canary("dsv4_canary_corruption_ratio", "prefill", cache="host"): f"0x20 0.05x30 0x{N}",
        canary("dsv4_canary_probes_total", "prefill", probe="echo", outcome="fail", cache="host"): f"0x20 1x{N}",
    }
    yield Case("a single odd reply", differing(N, odd), {11: set(), 17: set(), 24: set(), 40: set()})


def failing() -> Iterator[Case]:
    """DSV4CanaryFailing, DSV4NoCanarySuccess, DSV4CanaryBlind."""
    fails = {
        canary("dsv4_canary_probes_total", "decode", probe="echo", outcome="fail", cache="cold"): f"0x20 0+1x{N}",
        canary("dsv4_canary_ready", "decode"): f"1x22 0x{N}",
        canary("dsv4_canary_peer_result", "decode", peer="10.0.0.9"): f"1x20 0x{N}",
        canary("dsv4_canary_last_success_timestamp_seconds", "decode"): f"1+30x20 600x{N}",
    }
    yield Case(
        "a pod fails its probes",
        differing(N, fails),
        {9: set(), 15: {"DSV4CanaryFailing"}, 40: {"DSV4CanaryFailing"}},
        {"alertname": "DSV4CanaryFailing", "check": "role", "severity": "critical", "role": "decode"},
        never={"check": "link"},
    )
    restarted = {
        canary("dsv4_canary_probes_total", "decode", probe="echo", outcome="fail", cache="cold"): f"0x20 0+2x2 4x{N}",
        canary("dsv4_canary_ready", "decode"): f"1x21 0x{COLD_START} 1x{N}",
        canary("dsv4_canary_engine_healthy", "decode"): f"1x23 0x{COLD_START} 1x{N}",
    }
    yield Case(
        "an engine fails its probes and restarts",
        differing(N, restarted),
        {12: set(), 14: set(), 16: set(), 20: set(), 40: set()},
    )
    soon_well = {
        canary("dsv4_canary_probes_total", "decode", probe="echo", outcome="fail", cache="cold"): f"0x20 0+2x2 4x{N}",
        canary("dsv4_canary_ready", "decode"): f"1x21 0x3 1x{N}",
    }
    yield Case("out of service for a minute and a half", differing(N, soon_well), {11: set(), 12: set(), 14: set()})
    other = {
        selector.replace("demo-decode-0", "demo-decode-1"): values
        for selector, values in healthy(N).items()
        if 'role="decode"' in selector
    }
    yield Case(
        "one of two pods fails",
        differing(N, other, fails),
        {15: {"DSV4CanaryFailing"}},
        {"alertname": "DSV4CanaryFailing", "check": "pod", "severity": "warning", "pod": "demo-decode-0"},
    )
    once = {
        canary("dsv4_canary_probes_total", "decode", probe="echo", outcome="fail", cache="cold"): f"0x20 1x1 2x{N}",
        canary("dsv4_canary_ready", "decode"): f"1x22 0x3 1x{N}",
        canary("dsv4_canary_peer_result", "decode", peer="10.0.0.9"): f"1x20 0x4 1x{N}",
    }
    yield Case("two failed probes", differing(N, once), {11: set(), 12: set(), 15: set(), 30: set()})
    link = {
        canary("dsv4_canary_peer_result", "decode", peer="10.0.0.8"): f"1x20 0x{N}",
        canary("dsv4_canary_probes_total", "decode", probe="echo", outcome="fail", cache="cold"): f"0x20 0+1x{N}",
    }
    yield Case(
        "one link fails",
        differing(N, link),
        {15: set(), 21: {"DSV4CanaryFailing"}},
        {"alertname": "DSV4CanaryFailing", "check": "link", "peer": "10.0.0.8"},
    )
    short = {canary("dsv4_canary_peer_result", "decode", peer="10.0.0.8"): f"1x20 0x10 1x{N}"}
    yield Case("a link fails for five minutes", differing(N, short), {14: set(), 21: set()})
    unguarded = {
        canary("dsv4_canary_guard_present", "decode"): f"0x{N}",
        canary("dsv4_canary_ready", "decode"): f"0x{N}",
        canary("dsv4_canary_last_success_timestamp_seconds", "decode"): f"0x{N}",
    }
    yield Case(
        "bf16 without the guard",
        differing(N, unguarded),
        {3: set(), 10: {"DSV4CanaryFailing"}},
        {"alertname": "DSV4CanaryFailing", "check": "guard"},
    )
    silent = {
        canary("dsv4_canary_last_success_timestamp_seconds", "decode"): f"1+30x20 600x{N}",
        canary("dsv4_canary_probes_total", "decode", probe="echo", outcome="pass", cache="cold"): f"0+1x20 20x{N}",
    }
    yield Case(
        "a canary that hangs",
        differing(N, silent),
        {24: set(), 27: set(), 32: {"DSV4NoCanarySuccess"}},
        {"alertname": "DSV4NoCanarySuccess", "since": "15m"},
    )
    pause = {
        canary("dsv4_canary_last_success_timestamp_seconds", "decode"): f"1+30x20 600x20 1200+30x{N}",
    }
    yield Case("ten minutes without a probe", differing(N, pause), {19: set(), 30: set()})
    yield Case(
        "a pod that never comes up",
        differing(2 * N, loading("decode", 2 * N), over_time((DECODE_LOADS, 2 * N))),
        {44: set(), 74: set(), 77: {"DSV4NoCanarySuccess"}, 92: {"DSV4NoCanarySuccess", "DSV4NotServing"}},
        {"alertname": "DSV4NoCanarySuccess", "since": "start"},
    )
    gone = {
        canary("dsv4_canary_engine_healthy", "decode"): f"1x20 0x{N}",
        canary("dsv4_canary_ready", "decode"): f"1x20 0x{N}",
        canary("dsv4_canary_last_success_timestamp_seconds", "decode"): f"1+30x20 600x{N}",
    }
    yield Case(
        "an engine that died and does not come back",
        differing(N, gone, over_time((SERVES, 20), (DECODE_LOADS, N))),
        {60: set(), 84: set(), 87: set(), 91: {"DSV4NoCanarySuccess"}, 102: {"DSV4NoCanarySuccess", "DSV4NotServing"}},
        {"alertname": "DSV4NoCanarySuccess", "since": "75m"},
    )
    alone_said = {"workloads": {(OLD, PREFILL): workload(PREFILL, OLD, 1), (OLD, DECODE): workload(DECODE, OLD, 0)}}
    unproved = (pod(PREFILL, "its canary has not passed"), WAITING_ROUTER)
    for name, last, said, late in (
        ("the decodes are scaled to zero", f"1+30x20 600x{N}", says(*unproved, spec=PAUSED, **alone_said), set[str]()),
        ("alone from the start", f"0x{N}", says(*unproved), {"DSV4NotServing"}),
    ):
        alone: Series = {
            selector: (values or "").replace(f"x{N}", "x20") + " stale"
            for selector, values in healthy(N).items()
            if 'role="decode"' in selector or "dsv4_canary_peer_result" in selector
        }
        alone |= {
            canary("dsv4_canary_ready", "prefill"): f"1x20 0x{N}",
            canary("dsv4_canary_last_success_timestamp_seconds", "prefill"): last,
        }
        if last.startswith("0"):
            alone = {selector: None if "stale" in (values or "") else values for selector, values in alone.items()}
        yield Case(name, differing(N, alone, over_time((said, N))), {30: set(), 89: set(), 95: late, 115: late})
    blind = {canary("dsv4_canary_blind", "prefill", what="host"): f"0x20 1x{N}"}
    yield Case(
        "no reloaded prefix is met",
        differing(N, blind),
        {38: set(), 41: {"DSV4CanaryBlind"}},
        {"alertname": "DSV4CanaryBlind", "what": "host"},
    )
    blink = {canary("dsv4_canary_blind", "prefill", what="host"): f"0x20 1x50 0x{N}"}
    yield Case("blind for 25 minutes", differing(N, blink), {30: set(), 41: set()})


def wedged() -> Iterator[Case]:
    """DSV4EngineWedged."""
    wedge = {
        canary("dsv4_engine_wedged", "decode"): f"0x20 1x{N}",
        canary("dsv4_engine_wedge_info", "decode", kind="generation"): f"0x20 1x{N}",
    }
    yield Case(
        "a decode stands still",
        differing(N, wedge),
        {9: set(), 13: {"DSV4EngineWedged"}},
        {"alertname": "DSV4EngineWedged", "kind": "generation", "seen_by": "canary", "severity": "critical"},
    )
    other = {
        selector.replace("demo-decode-0", "demo-decode-1"): values
        for selector, values in healthy(N).items()
        if 'role="decode"' in selector
    }
    failing = {
        canary("dsv4_canary_ready", "decode"): f"1x22 0x{N}",
        canary("dsv4_canary_probes_total", "decode", probe="echo", outcome="fail", cache="cold"): f"0x20 0+1x{N}",
    }
    yield Case(
        "a wedged decode beside a sound one: one page, not two",
        differing(N, other, wedge, failing),
        {20: {"DSV4EngineWedged"}},
    )
    flicker = {canary("dsv4_engine_wedged", "decode"): f"0x20 1x1 0x{N}"}
    yield Case("one scrape says wedged", differing(N, flicker), {10: set(), 11: set(), 12: set()})
    bare: Series = {
        **{selector: values for selector, values in healthy(N).items() if 'container="canary"' not in selector},
        **over_time((UNPROVED, N)),
    }
    still = {
        engine("sglang:realtime_tokens_total", "decode", mode="decode", tp_rank="0"): f"0+12000x20 240000x{N}",
        engine("sglang:generation_tokens_total", "decode"): f"0+12000x20 240000x{N}",
    }
    yield Case(
        "a decode without canary stands still",
        bare | still,
        {16: set(), 22: {"DSV4EngineWedged"}},
        {"alertname": "DSV4EngineWedged", "seen_by": "metrics"},
    )
    counted_late = {
        engine("sglang:realtime_tokens_total", "decode", mode="decode", tp_rank="0"): f"0+12000x20 240000x{N}",
    }
    yield Case("a release that counts tokens at the end alone", bare | counted_late, {22: set(), 40: set()})
    yield Case("tokens stand still, and a canary says why not", differing(N, still), {22: set(), 40: set()})
    idle = {
        **still,
        engine("sglang:num_running_reqs", "decode", tp_rank="0"): f"4x20 0x{N}",
    }
    yield Case("a decode without canary is idle", bare | idle, {22: set(), 40: set()})
    long = {engine("sglang:generation_tokens_total", "decode"): f"0+12000x20 240000x{N}"}
    yield Case("long answers: none finishes for minutes, tokens flow", bare | long, {22: set(), 40: set()})


def transfer() -> Iterator[Case]:
    """DSV4TransferSlow and DSV4TransferFailures."""
    history = 3 * HOUR
    groups = ("dsv4-engine", "dsv4-transfer")
    slow: Series = {
        engine("sglang:kv_transfer_speed_gb_s_sum", role): f"0+400x{history} {400 * history}+40x{HOUR}"
        for role in ROLES
    }
    start = history // MINUTE
    yield Case(
        "transfers at a tenth of their speed",
        differing(history + HOUR, slow),
        {start - 5: set(), start + 20: set(), start + 40: {"DSV4TransferSlow"}},
        groups=groups,
    )
    young: Series = {
        engine("sglang:kv_transfer_speed_gb_s_sum", role): f"0+400x{HOUR} {400 * HOUR}+40x{HOUR}" for role in ROLES
    }
    yield Case(
        "slow after an hour: too little history", differing(2 * HOUR, young), {85: set(), 100: set()}, groups=groups
    )
    smaller: Series = {
        engine("sglang:kv_transfer_total_mb_sum", role): f"0+2000x{history} {2000 * history}+100x{HOUR}"
        for role in ROLES
    }
    yield Case(
        "transfers are small, so slow",
        differing(history + HOUR, slow, smaller),
        {start + 20: set(), start + 40: set()},
        groups=groups,
    )
    half: Series = {
        engine("sglang:kv_transfer_speed_gb_s_sum", role): f"0+400x{history} {400 * history}+200x{HOUR}"
        for role in ROLES
    }
    yield Case(
        "transfers at half speed under load", differing(history + HOUR, half), {start + 40: set()}, groups=groups
    )
    yield Case(
        "slow from the start: no history",
        differing(HOUR, {engine("sglang:kv_transfer_speed_gb_s_sum", role): f"0+4x{HOUR}" for role in ROLES}),
        {40: set(), 55: set()},
    )
    yield Case(
        "transfers fail",
        differing(N, {engine("sglang:num_transfer_failed_reqs_total", "decode", tp_rank="0"): f"0x20 0+2x{N}"}),
        {15: set(), 24: {"DSV4TransferFailures"}},
    )
    yield Case(
        "bootstraps fail, under the other spelling",
        differing(
            N,
            {engine("sglang_num_bootstrap_failed_reqs_total", "prefill", tp_rank="0"): f"0x20 0+2x{N}"},
            prefix="sglang_",
        ),
        {24: {"DSV4TransferFailures"}},
    )
    burst = {engine("sglang:num_transfer_failed_reqs_total", "decode", tp_rank="0"): f"0x20 80x{N}"}
    yield Case("a pod goes with 80 requests", differing(N, burst), {13: set(), 22: set()})
    rare = {
        engine("sglang:num_transfer_failed_reqs_total", "decode", tp_rank="0"): f"0x20 0+1x{N}",
        engine("sglang:num_requests_total", "decode"): f"0+2000x{N}",
    }
    yield Case("one failure in two thousand", differing(N, rare), {24: set(), 60: set()})


def drift() -> Iterator[Case]:
    """DSV4RouterDrift."""
    drifts = over_time((SERVES, 20), (says(*PAIR, pod(ROUTER), router_drift=["router r: http://x is missing"]), N))
    yield Case(
        "a router lacks a worker",
        differing(N, {operator("dsv4_operator_router_drift"): f"0x20 1x{N}"}, drifts),
        {13: set(), 17: {"DSV4RouterDrift"}},
        {"alertname": "DSV4RouterDrift", "namespace": "llm", "deployment": "demo"},
    )
    moved = 'dsv4_operator_router_drift{namespace="dsv4-system",exported_namespace="llm",name="demo"}'
    yield Case(
        "labels not honored",
        differing(N, {operator("dsv4_operator_router_drift"): None, moved: f"0x20 1x{N}"}),
        {17: {"DSV4RouterDrift"}},
        {"alertname": "DSV4RouterDrift", "namespace": "llm", "deployment": "demo"},
    )
    yield Case(
        "drift during a change",
        differing(N, {operator("dsv4_operator_router_drift"): f"0x20 2x6 0x{N}"}),
        {12: set(), 17: set()},
    )


def output() -> Iterator[Case]:
    """DSV4OutputLengthRatio and DSV4SpecAcceptLengthDrop."""
    history = 11 * HOUR // 2
    groups = ("dsv4-engine", "dsv4-output")
    start, whole = history // MINUTE, history + 2 * HOUR
    tokens = engine("sglang:generation_tokens_total", "decode")
    longer = {tokens: f"0+12000x{history} {12000 * history}+30000x{2 * HOUR}"}
    yield Case(
        "answers loop",
        differing(whole, longer),
        {start - 5: set(), start + 20: set(), start + 75: {"DSV4OutputLengthRatio"}},
        groups=groups,
    )
    young = 3 * HOUR
    yield Case(
        "longer answers after three hours: too little history",
        differing(young + 2 * HOUR, {tokens: f"0+12000x{young} {12000 * young}+30000x{2 * HOUR}"}),
        {young // MINUTE + 75: set()},
        groups=groups,
    )
    somewhat = {tokens: f"0+12000x{history} {12000 * history}+18000x{2 * HOUR}"}
    yield Case("answers are half as long again", differing(whole, somewhat), {start + 75: set()}, groups=groups)
    cold = {engine("sglang:load_back_tokens_total", "prefill", pool="kv"): None}
    yield Case("longer answers without reloads", differing(whole, longer, cold), {start + 75: set()}, groups=groups)
    requests = engine("sglang:num_requests_total", "decode")
    night = {
        # Two probes a sample (one of each sidecar) and next to no users; then users with long answers come.
        requests: f"0+2x{history} {2 * history}+22x{2 * HOUR}",
        tokens: f"0+120x{history} {120 * history}+12120x{2 * HOUR}",
        engine("sglang:realtime_tokens_total", "decode", mode="decode", tp_rank="0"): f"0+120x{whole}",
    }
    yield Case(
        "users come after a night of canaries alone",
        differing(whole, night),
        {start + 40: set(), start + 75: set()},
        groups=groups,
    )
    length = engine("sglang:spec_accept_length", "decode", tp_rank="0")
    yield Case(
        "speculation accepts half",
        differing(whole, {length: f"2.5x{history} 1.2x{2 * HOUR}"}),
        {start + 5: set(), start + 15: set(), start + 40: {"DSV4SpecAcceptLengthDrop"}},
        groups=groups,
    )
    yield Case(
        "speculation accepts half after an hour: too little history",
        differing(3 * HOUR, {length: f"2.5x{HOUR} 1.2x{2 * HOUR}"}),
        {100: set(), 115: set()},
        groups=groups,
    )
    yield Case(
        "speculation accepts a little less",
        differing(whole, {length: f"2.5x{history} 2.1x{2 * HOUR}"}),
        {start + 40: set()},
        groups=groups,
    )
    tokens_now = engine("sglang:realtime_tokens_total", "decode", mode="decode", tp_rank="0")
    yield Case(
        "speculation dips for nine minutes, then the engine idles",
        differing(
            whole,
            {
                length: f"2.5x{history} 1.2x{2 * HOUR}",
                tokens_now: f"0+12000x{history + 8} {12000 * (history + 8)}x{2 * HOUR}",
                engine("sglang:num_running_reqs", "decode", tp_rank="0"): f"4x{history + 8} 0x{2 * HOUR}",
            },
        ),
        {start + 22: set(), start + 23: set(), start + 24: set()},
        groups=groups,
    )
    yield Case(
        "speculation rests with the engine",
        differing(
            whole,
            {
                length: f"2.5x{history} 0x{2 * HOUR}",
                engine("sglang:realtime_tokens_total", "decode", mode="decode", tp_rank="0"): (
                    f"0+12000x{history} {12000 * history}x{2 * HOUR}"
                ),
                engine("sglang:num_running_reqs", "decode", tp_rank="0"): f"4x{history} 0x{2 * HOUR}",
            },
        ),
        {start + 40: set()},
        groups=groups,
    )


def live_calls() -> Iterator[Case]:
    """DSV4LiveToolCallCorruption."""
    name = {"DSV4LiveToolCallCorruption"}
    yield Case(
        "a tenth of the calls on reloaded prefixes is damaged",
        differing(N, live({"host/leaked": f"0x20 0+1x{N}"})),
        {9: set(), 16: set(), 22: name},
        {"alertname": "DSV4LiveToolCallCorruption", "against": "cold", "cache": "host", "severity": "critical"},
    )
    yield Case(
        "a single odd reply among few",
        differing(N, live({"host/leaked": f"0x20 1x{N}", "host/valid": f"0+1x{N}", "cold/valid": f"0+1x{N}"})),
        {12: set(), 20: set(), 25: set()},
    )
    yield Case(
        "the model breaks schemas on every tier alike",
        differing(N, live({f"{cache}/schema": f"0+0.4x{N}" for cache in ("cold", "device", "host")})),
        {20: set(), 60: set()},
    )
    yield Case(
        "markup leaks on cold prefixes too: a wrong parser",
        differing(N, live({f"{cache}/leaked": f"0x20 0+3x{N}" for cache in ("cold", "device", "host")})),
        {9: set(), 15: set(), 25: name},
        {"alertname": "DSV4LiveToolCallCorruption", "against": "absolute", "severity": "warning"},
    )
    yield Case(
        "four damaged calls of thirty",
        differing(N, live({"host/valid": f"0+1x{N}", "host/leaked": f"0x20 0+1x4 4x{N}"})),
        {16: set(), 18: set(), 20: set()},
    )
    yield Case(
        "fifteen calls on reloaded prefixes, six of them damaged",
        differing(N, live({"host/valid": f"0+0.3x{N}", "host/leaked": f"0x20 0+1x6 6x{N}"})),
        {16: set(), 18: set(), 20: set()},
    )
    yield Case(
        "schemas break, and hardly any cold call to compare with",
        differing(N, live({"host/valid": f"0x{N}", "host/schema": f"0+10x{N}", "cold/valid": f"0+0.33x{N}"})),
        {20: set(), 40: set()},
    )
    cold_alone = {"device/valid": f"0x{N}", "host/valid": f"0x{N}"}
    yield Case(
        "eight broken calls of a hundred",
        differing(N, live({**cold_alone, "cold/valid": f"0+3x{N}", "cold/leaked": f"0x20 0+1x8 8x{N}"})),
        {20: set(), 23: set(), 24: set()},
    )
    yield Case(
        "twelve broken calls of forty",
        differing(N, live({**cold_alone, "cold/valid": f"0+0.9x{N}", "cold/leaked": f"0x20 0+2x6 12x{N}"})),
        {20: set(), 23: set(), 24: set()},
    )
    yield Case(
        "three broken calls in all",
        differing(N, live({"cold/invalid_json": f"0x20 0+1x3 3x{N}"})),
        {15: set(), 25: set()},
    )


def absent() -> Iterator[Case]:
    """DSV4CanaryAbsent and DSV4EngineMetricsAbsent."""
    down: Series = {
        selector: (values or "").replace(f"x{N}", "x20") + " stale"
        for selector, values in healthy(N).items()
        if 'container="canary"' in selector and 'role="decode"' in selector
    }
    yield Case(
        "a canary cannot be scraped",
        differing(N, down, {canary("up", "decode"): f"1x20 0x{N}"}),
        {20: set(), 27: {"DSV4CanaryAbsent"}},
        {"alertname": "DSV4CanaryAbsent", "pod": "demo-decode-0"},
    )
    yield Case(
        "a canary's target vanishes",
        differing(N, down),
        {20: set(), 27: {"DSV4CanaryAbsent"}},
        {"alertname": "DSV4CanaryAbsent", "pod": "demo-decode-0"},
    )
    yield Case(
        "a canary misses scrapes for five minutes",
        differing(N, {canary("up", "decode"): f"1x20 0x10 1x{N}"}),
        {14: set(), 27: set()},
    )
    unscraped = {selector: values for selector, values in healthy(N).items() if selector.startswith("dsv4_operator_")}
    yield Case(
        "no pod is scraped at all",
        unscraped,
        {13: set(), 17: {"DSV4CanaryAbsent"}},
        {"alertname": "DSV4CanaryAbsent", "level": "deployment", "deployment": "demo"},
    )
    engineless: Series = {
        selector: (values or "").replace(f"x{N}", "x20") + " stale"
        for selector, values in healthy(N).items()
        if 'container="engine"' in selector and 'role="decode"' in selector
    }
    yield Case(
        "an engine's metrics vanish",
        differing(N, engineless),
        {18: set(), 22: {"DSV4EngineMetricsAbsent"}},
        {"alertname": "DSV4EngineMetricsAbsent", "pod": "demo-decode-0"},
    )
    returning: Series = {
        selector: (values or "").replace(f"x{N}", "x20") + f" _x10 {(values or '').split('+')[0].split('x')[0]}x{N}"
        for selector, values in healthy(N).items()
        if "sglang:num_running_reqs" in selector and 'role="decode"' in selector
    }
    yield Case("an engine misses scrapes for five minutes", differing(N, returning), {14: set(), 22: set()})


def other_labels() -> Iterator[Case]:
    """Pods whose labels come under their long names, as from a label map."""
    long = {
        selector.replace(",deployment=", ",serving_dsv4_dev_deployment=")
        .replace(",role=", ",serving_dsv4_dev_role=")
        .replace(",fingerprint=", ",serving_dsv4_dev_fingerprint="): values
        for selector, values in differing(
            N,
            {
                canary("dsv4_canary_corruption_verdict", "prefill"): f"2x{N}",
                engine("sglang:num_transfer_failed_reqs_total", "decode", tp_rank="0"): f"0x20 0+2x{N}",
            },
            live({"host/leaked": f"0x20 0+1x{N}"}),
        ).items()
    }
    yield Case(
        "long names of labels",
        long,
        {30: {"DSV4Corruption", "DSV4TransferFailures", "DSV4LiveToolCallCorruption"}},
        {"alertname": "DSV4LiveToolCallCorruption", "deployment": "demo", "cache": "host"},
    )


CASES = [
    case
    for part in (quiet, corruption, failing, wedged, transfer, drift, objects, output, live_calls, absent, other_labels)
    for case in part()
]
