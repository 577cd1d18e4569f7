"""What the dashboard shows about answers: at a glance, pairs, the canary, live calls, probes."""

from __future__ import annotations

from typing import Final

from monitoring.board import (
    GREEN,
    ORANGE,
    PEER,
    RATE,
    RED,
    VERDICT,
    YELLOW,
    YES_BAD,
    YES_GOOD,
    Panel,
    Query,
    Row,
    ours,
)

_ALERTS = 'alertname=~"DSV4.+",alertstate="firing"'
_PREFILL = 'role="prefill"'
_DECODE = 'role="decode"'
_CANARY = 'container="canary"'
_NO_CALL = 'outcome="none"'
_CONCLUSIVE = 'outcome=~"pass|fail"'


def quantile(share: float, metric: str, by: str, more: str = "") -> str:
    """A quantile of one of our own histograms."""
    return f"histogram_quantile({share}, sum by (le, {by}) (rate({ours(metric + '_bucket', more)}[{RATE}])))"


GLANCE: Final = Row(
    "At a glance",
    (
        Panel(
            "Corruption verdict",
            "Worst verdict of all canaries: cold against reused prefixes, a two-sample test with minimum evidence.",
            (Query(f"max({ours('dsv4_canary_corruption_verdict')})"),),
            kind="stat", width=4, height=4, states=VERDICT,
            steps=((0, GREEN), (1, ORANGE), (2, RED)), alert="DSV4Corruption",
        ),
        Panel(
            "Damaged live tool calls, 15 min",
            "Share of users' tool calls that do not parse, break their schema, leak markup or loop. Gated image only.",
            (
                Query(
                    f"sum({ours('dsv4_generation:live_tool_calls_damaged:increase15m')})\n"
                    f"/ (sum({ours('dsv4_generation:live_tool_calls:increase15m')}) > 0)"
                ),
            ),
            kind="stat", width=4, height=4, unit="percentunit",
            steps=((0, GREEN), (0.02, ORANGE), (0.05, RED)), alert="DSV4LiveToolCallCorruption",
        ),
        Panel(
            "Wedged engines",
            "Engines that hold work and do not move it.",
            (Query(f"sum({ours('dsv4_engine_wedged')})"),),
            kind="stat", width=4, height=4, steps=((0, GREEN), (1, RED)), alert="DSV4EngineWedged",
        ),
        Panel(
            "Pods out of service",
            "Engine pods whose canary does not pass, loading ones included.",
            (Query(f"count({ours('dsv4_canary_ready')} == 0) or 0 * count({ours('dsv4_canary_ready')})"),),
            kind="stat", width=4, height=4, steps=((0, GREEN), (1, ORANGE)), alert="DSV4CanaryFailing",
        ),
        Panel(
            "Oldest proof",
            "Time since the last passed probe of the pod where it is longest ago.",
            (Query(f"max(time() - ({ours('dsv4_canary_last_success_timestamp_seconds')} > 0))"),),
            kind="stat", width=4, height=4, unit="s",
            steps=((0, GREEN), (300, YELLOW), (900, RED)), alert="DSV4NoCanarySuccess",
        ),
        Panel(
            "Alerts that fire",
            "All alerts of the shipped rules.",
            (Query(f"count({ours('ALERTS', _ALERTS)}) or vector(0)"),),
            kind="stat", width=4, height=4, steps=((0, GREEN), (1, RED)),
        ),
        Panel(
            "What fires",
            "Each has a page of its name in the runbooks, which are linked at the top.",
            (Query(f"max by (alertname, severity, namespace, deployment, role, pod, peer, check, kind, cache) "
                   f"({ours('ALERTS', _ALERTS)})"),),
            kind="table", width=24, height=5,
            columns=(
                "alertname", "severity", "namespace", "deployment", "role", "pod", "peer", "check", "kind", "cache",
            ),
            idle="nothing fires on a healthy pair",
        ),
    ),
)  # fmt: skip

PAIRS: Final = Row(
    "Pairs",
    (
        Panel(
            "Seen from prefill: prefill pods down, decode addresses across",
            """Latest result of each prefill's canary with each decode. A failing row blames the prefill, a failing
            column the decode, a single cell the link between them.""",
            (Query(f"max by (pod, peer) ({ours('dsv4_canary_peer_result', _PREFILL)})"),),
            kind="matrix", width=12, states=PEER, columns=("peer", "pod"), alert="DSV4CanaryFailing",
        ),
        Panel(
            "Seen from decode: decode pods down, prefill addresses across",
            "The same pairs, driven by the decodes' canaries.",
            (Query(f"max by (pod, peer) ({ours('dsv4_canary_peer_result', _DECODE)})"),),
            kind="matrix", width=12, states=PEER, columns=("peer", "pod"), alert="DSV4CanaryFailing",
        ),
        Panel(
            "Addresses",
            "Which pod has which address, and whether its canary is scraped.",
            (Query(f"max by (role, pod, instance, fingerprint) ({ours('up', _CANARY)})"),),
            kind="table", width=12, states=YES_GOOD, columns=("role", "pod", "instance", "fingerprint"),
            alert="DSV4CanaryAbsent",
        ),
        Panel(
            "Ready",
            "Whether each pod's canary lets it serve.",
            (Query(f"max by (role, pod) ({ours('dsv4_canary_ready')})", "{{role}} {{pod}}"),),
            kind="states", width=12, states=YES_GOOD, alert="DSV4CanaryFailing",
        ),
    ),
)  # fmt: skip

ANSWERS: Final = Row(
    "Answers: what the canary sees",
    (
        Panel(
            "Corruption ratio by cache tier",
            """Share of conclusive probes in the window with evidence of corruption. Host or device above cold means
            damaged KV; all tiers alike mean model, parser or template.""",
            (Query(f"max by (cache) ({ours('dsv4_canary_corruption_ratio')})", "{{cache}}"),),
            unit="percentunit", steps=((0, GREEN), (0.05, RED)), alert="DSV4Corruption",
        ),
        Panel(
            "Evidence in the window",
            "How many probes stand behind the ratio, and how many of them were damaged.",
            (
                Query(f"sum by (cache) ({ours('dsv4_canary_window_probes')})", "{{cache}}: probes"),
                Query(f"sum by (cache) ({ours('dsv4_canary_window_failures')})", "{{cache}}: damaged"),
            ),
            alert="DSV4CorruptionSuspected",
        ),
        Panel(
            "Verdict",
            "None, suspected, confirmed, by pod.",
            (Query(f"max by (role, pod) ({ours('dsv4_canary_corruption_verdict')})", "{{role}} {{pod}}"),),
            kind="states", states=VERDICT, steps=((0, GREEN), (1, ORANGE), (2, RED)), alert="DSV4Corruption",
        ),
        Panel(
            "Findings by signature, an hour",
            "Signatures S1 to S32 and ways to fail. What each means: docs/canary.md.",
            (
                Query(
                    f"sum by (signature, cache) (increase({ours('dsv4_canary_failures_total')}[1h])) > 0",
                    "{{signature}} {{cache}}",
                ),
            ),
            kind="bars", idle="a healthy pair has no findings", alert="DSV4CanaryFailing",
        ),
        Panel(
            "Drift of output logprobs",
            """The same prompt cold and from each tier: largest difference of the last comparison, against the margin
            learnt from repeats. Moves before any text breaks.""",
            (
                Query(f"max by (cache) ({ours('dsv4_canary_drift_logprob')})", "{{cache}}"),
                Query(f"max({ours('dsv4_canary_drift_margin')})", "margin"),
            ),
            alert="DSV4CorruptionSuspected",
        ),
        Panel(
            "Blind spots",
            "1 while the canary could not see one kind of corruption.",
            (Query(f"max by (what, pod) ({ours('dsv4_canary_blind')})", "{{what}} {{pod}}"),),
            kind="states", states=YES_BAD, steps=((0, GREEN), (1, ORANGE)), alert="DSV4CanaryBlind",
        ),
        Panel(
            "Usable probes",
            "A probe that the model itself cannot pass is set aside instead of alarming.",
            (Query(f"min by (probe) ({ours('dsv4_canary_probe_usable')})", "{{probe}}"),),
            kind="states", states=YES_GOOD, alert="DSV4CanaryBlind",
        ),
        Panel(
            "Guard of index-K",
            "Whether the engine shows the plugin's marker, where its spec needs it.",
            (
                Query(f"max by (role, pod) ({ours('dsv4_canary_guard_required')})", "required {{pod}}"),
                Query(f"max by (role, pod) ({ours('dsv4_canary_guard_present')})", "present {{pod}}"),
            ),
            kind="states", states={0: ("no", YELLOW), 1: ("yes", GREEN)}, alert="DSV4CanaryFailing",
        ),
    ),
)  # fmt: skip

LIVE: Final = Row(
    "Live traffic: tool calls of users (gated image)",
    (
        Panel(
            "Finished requests with tools, by outcome",
            "One count for each finished chat completion that offered tools; the worst outcome of its calls.",
            (Query(f"sum by (outcome) (rate({ours('dsv4_guard_tool_calls_total')}[{RATE}]))", "{{outcome}}"),),
            kind="bars", unit="reqps", alert="DSV4LiveToolCallCorruption",
        ),
        Panel(
            "Damaged share by cache tier, 15 min",
            "Calls that do not parse, break their schema, name an unknown tool, leak markup or loop.",
            (Query(f"max by (cache) ({ours('dsv4_generation:live_tool_calls_damaged:ratio15m')})", "{{cache}}"),),
            unit="percentunit", steps=((0, GREEN), (0.02, RED)), alert="DSV4LiveToolCallCorruption",
        ),
        Panel(
            "Reused against cold prefixes, z score",
            """Two-proportion test of the damaged share against cold prefixes. Above 3 chance is a poor explanation.
            Needs calls on both within 15 minutes.""",
            (Query(f"max by (cache) ({ours('dsv4_generation:live_tool_calls_damaged:zscore15m')})", "{{cache}}"),),
            steps=((0, GREEN), (3, RED)), alert="DSV4LiveToolCallCorruption",
        ),
        Panel(
            "Cost of counting",
            "Time that the plugin's counters take for each request.",
            (
                Query(
                    f"sum by (pod) (rate({ours('dsv4_guard_request_seconds_sum')}[{RATE}]))\n"
                    f"/ sum by (pod) (rate({ours('dsv4_guard_request_seconds_count')}[{RATE}]))",
                    "{{pod}}",
                ),
            ),
            unit="s",
        ),
        Panel(
            "Guard: release and index-K format",
            "What the plugin found, in API and scheduler processes.",
            (Query(f"max by (pod, process, version, release, index_k) ({ours('dsv4_guard_info')})"),),
            kind="table", states=YES_GOOD, columns=("pod", "process", "version", "release", "index_k"),
        ),
        Panel(
            "Requests without a call",
            "Tools were offered and plain text came. A rise can be calls that were dropped silently.",
            (
                Query(
                    f"sum by (cache) (rate({ours('dsv4_guard_tool_calls_total', _NO_CALL)}[15m]))\n"
                    f"/ sum by (cache) (rate({ours('dsv4_guard_tool_calls_total')}[15m]))",
                    "{{cache}}",
                ),
            ),
            unit="percentunit", alert="DSV4LiveToolCallCorruption",
        ),
    ),
)  # fmt: skip

PROBES: Final = Row(
    "Probes: latency and cost",
    (
        Panel(
            "Probe latency",
            "Conclusive probes through the pair: median and 95th percentile.",
            (
                Query(quantile(0.5, "dsv4_canary_probe_seconds", "probe"), "{{probe}} p50"),
                Query(quantile(0.95, "dsv4_canary_probe_seconds", "probe"), "{{probe}} p95"),
            ),
            unit="s",
        ),
        Panel(
            "Attempts by outcome",
            "Loading, unreachable and busy peers are no failures.",
            (Query(f"sum by (outcome) (rate({ours('dsv4_canary_probes_total')}[{RATE}])) * 60", "{{outcome}}"),),
            kind="bars", unit="cpm", alert="DSV4NoCanarySuccess",
        ),
        Panel(
            "Conclusive probes by cache tier",
            "Corruption shows on host and device; without probes there it stays unseen.",
            (
                Query(
                    f"sum by (cache) (rate({ours('dsv4_canary_probes_total', _CONCLUSIVE)}[{RATE}])) * 60",
                    "{{cache}}",
                ),
            ),
            kind="bars", unit="cpm", alert="DSV4CanaryBlind",
        ),
        Panel(
            "Tokens that the canary costs",
            "Tokens a minute, all pods.",
            (Query(f"sum by (kind) (rate({ours('dsv4_canary_tokens_total')}[{RATE}])) * 60", "{{kind}}"),),
        ),
        Panel(
            "Share of the pair's tokens",
            "The canary's completion tokens among all that the decodes generated. An idle pair shows a large share.",
            (
                Query(
                    f"sum({ours('dsv4_generation:canary_completion_tokens:rate30m')})\n"
                    f"/ (sum({ours('dsv4_generation:generation_tokens:rate30m')}) > 0)",
                    "share",
                ),
            ),
            unit="percentunit",
        ),
        Panel(
            "Prompt of the last probe",
            "Tokens, as the engine counted. Below 2,048 sparse attention has nothing to choose.",
            (Query(f"min by (pod) ({ours('dsv4_canary_prompt_tokens')})", "{{pod}}"),),
            steps=((0, RED), (2048, GREEN)), alert="DSV4CanaryBlind",
        ),
    ),
)  # fmt: skip

ROWS: Final = (GLANCE, PAIRS, ANSWERS, LIVE, PROBES)
