"""What the dashboard shows about the operator and about soaks."""

from __future__ import annotations

from typing import Final

from monitoring.board import GREEN, ORANGE, RATE, RED, Panel, Query, Row, ours

OPERATOR: Final = Row(
    "Operator",
    (
        Panel(
            "Conditions",
            "The present status of each condition of each DSV4Deployment.",
            (Query(f"max by (namespace, deployment, type, status) ({ours('dsv4_object:condition:max')})"),),
            kind="table", columns=("namespace", "deployment", "type", "status"), alert="DSV4NotServing",
        ),
        Panel(
            "Router drift",
            "Workers that differ between the published list and the routers' own.",
            (Query(ours("dsv4_object:router_drift:max"), "{{namespace}}/{{deployment}}"),),
            steps=((0, GREEN), (1, RED)), alert="DSV4RouterDrift",
        ),
        Panel(
            "Generations and findings",
            "More than one generation for long is a rollout that stands still.",
            (
                Query("max by (name) (dsv4_operator_generations)", "{{name}}: generations"),
                Query("sum by (name, action) (dsv4_operator_findings)", "{{name}}: {{action}}"),
            ),
        ),
        Panel(
            "Passes by result",
            "Reconcile passes a second.",
            (Query(f"sum by (result) (rate(dsv4_operator_reconcile_total[{RATE}]))", "{{result}}"),),
            kind="bars", unit="ops",
        ),
        Panel(
            "Time of a pass",
            "Median and 99th percentile.",
            tuple(
                Query(
                    f"histogram_quantile({share}, sum by (le) "
                    f"(rate(dsv4_operator_reconcile_duration_seconds_bucket[{RATE}])))",
                    f"p{share * 100:g}",
                )
                for share in (0.5, 0.99)
            ),
            unit="s",
        ),
        Panel(
            "Work queue",
            "Keys that wait, wait for a time, and run.",
            tuple(
                Query(f"sum(dsv4_operator_queue_{name})", name) for name in ("depth", "delayed", "running")
            ),
        ),
        Panel(
            "Oldest waiting key, longest pass",
            "The health check fails when these grow without end.",
            (
                Query("max(dsv4_operator_queue_oldest_age_seconds)", "waits"),
                Query("max(dsv4_operator_queue_longest_run_seconds)", "runs"),
            ),
            unit="s",
        ),
        Panel(
            "Requests to the API server",
            "By verb and code.",
            (Query(f"sum by (verb, code) (rate(dsv4_operator_api_calls_total[{RATE}]))", "{{verb}} {{code}}"),),
            unit="reqps",
        ),
        Panel(
            "Leader, schema, retries",
            "One leader is wanted; fields that the installed CRD drops silently; passes put back with backoff.",
            (
                Query("sum(dsv4_operator_leader)", "leaders"),
                Query("max(dsv4_operator_crd_pruned_fields)", "dropped fields"),
                Query(f"sum(rate(dsv4_operator_queue_retries_total[{RATE}]))", "retries a second"),
            ),
            steps=((0, GREEN), (2, ORANGE)), alert="DSV4OperatorDown",
        ),
    ),
)  # fmt: skip


def _soak(name: str) -> str:
    return f'{name}{{tag=~"$soak"}}'


SOAK: Final = Row(
    "Soak (dsv4ctl soak)",
    (
        Panel(
            "Replies by verdict",
            "Finished requests a second: clean, corrupted, budget, failed.",
            (
                Query(
                    f"sum by (phase, verdict) (rate({_soak('dsv4_soak_replies_total')}[{RATE}]))",
                    "{{phase}} {{verdict}}",
                ),
            ),
            kind="bars", unit="reqps",
        ),
        Panel(
            "Sessions",
            "Planned, finished and corrupted sessions of the phase.",
            (Query(f"max by (phase, state) ({_soak('dsv4_soak_sessions')})", "{{phase}} {{state}}"),),
        ),
        Panel(
            "Findings by signature",
            "Signatures in replies, since the start.",
            (
                Query(
                    f"sum by (phase, signature, severity) ({_soak('dsv4_soak_findings_total')})",
                    "{{phase}} {{signature}} ({{severity}})",
                ),
            ),
            idle="a healthy pair has no findings",
        ),
        Panel(
            "Time of a reply",
            "Whole replies, median and 95th percentile.",
            tuple(
                Query(
                    f"histogram_quantile({share}, sum by (le, phase) "
                    f"(rate({_soak('dsv4_soak_reply_seconds_bucket')}[{RATE}])))",
                    f"{{{{phase}}}} p{share * 100:g}",
                )
                for share in (0.5, 0.95)
            ),
            unit="s",
        ),
        Panel(
            "Time to the first byte",
            "Streamed replies, 95th percentile.",
            (
                Query(
                    f"histogram_quantile(0.95, sum by (le, phase) "
                    f"(rate({_soak('dsv4_soak_first_byte_seconds_bucket')}[{RATE}])))",
                    "{{phase}} p95",
                ),
            ),
            unit="s",
        ),
        Panel(
            "Requests in flight",
            "What the soak holds open now.",
            (Query(f"sum by (tag) ({_soak('dsv4_soak_requests_running')})", "{{tag}}"),),
        ),
        Panel(
            "Tokens a second",
            "As the endpoint counted: prompt, of it cached, completion.",
            (Query(f"sum by (kind) (rate({_soak('dsv4_soak_tokens_total')}[{RATE}]))", "{{kind}}"),),
        ),
        Panel(
            "Requests without a whole reply",
            "By kind, since the start.",
            (Query(f"sum by (phase, kind) ({_soak('dsv4_soak_failures_total')})", "{{phase}} {{kind}}"),),
            steps=((0, GREEN), (1, ORANGE), (20, RED)), idle="a healthy pair answers every request",
        ),
    ),
    collapsed=True,
)  # fmt: skip

ROWS: Final = (OPERATOR, SOAK)
