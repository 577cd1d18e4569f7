"""Situations for promtool: what a pair exposes over time, and exactly which alerts fire when.

Values are in promtool's notation, one sample each 30 s: ``1x9`` is ten ones, ``0+2x9`` counts up by two, ``_x9`` is
nine missing samples, ``stale`` ends a series. Each situation starts from a healthy pair and says what differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final

from said import SERVES, Conditions

from dsv4_operator.api.v1alpha1 import ConditionType

MINUTE: Final = 2
"""Samples a minute."""
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
COLD_START: Final = 45 * MINUTE
N: Final = 2 * HOUR
ROLES: Final = ("prefill", "decode")

Series = dict[str, str | None]
"""Selector of a series to its values; None takes the series away."""

LEADER: Final = 'dsv4_operator_leader{namespace="dsv4-system",pod="dsv4-operator-0"}'


def labels(role: str, **more: str) -> str:
    """Labels of one engine pod's series."""
    own = {"namespace": "llm", "deployment": "demo", "fingerprint": "f1", "role": role, "pod": f"demo-{role}-0"} | more
    return ",".join(f'{name}="{value}"' for name, value in own.items())


def canary(name: str, role: str, **more: str) -> str:
    """A series of the sidecar."""
    return f"{name}{{{labels(role, container='canary', **more)}}}"


def engine(name: str, role: str, **more: str) -> str:
    """A series of the engine."""
    return f"{name}{{{labels(role, container='engine', engine_type=role, model_name='m', **more)}}}"


def operator(name: str, **more: str) -> str:
    """A series of the operator about the pair."""
    own = {"namespace": "llm", "name": "demo"} | more
    pairs = ",".join(f'{key}="{value}"' for key, value in own.items())
    return f"{name}{{{pairs}}}"


def healthy(samples: int, prefix: str = "sglang:") -> Series:
    """One prefill and one decode that serve, with HiCache in use."""
    n = samples
    found: Series = {
        **over_time((SERVES, n + 1)),
        LEADER: f"1x{n}",
        operator("dsv4_operator_router_drift"): f"0x{n}",
    }
    for role in ("prefill", "decode"):
        found |= {
            canary("up", role): f"1x{n}",
            canary("dsv4_canary_ready", role): f"1x{n}",
            canary("dsv4_canary_engine_healthy", role): f"1x{n}",
            canary("dsv4_canary_corruption_verdict", role): f"0x{n}",
            canary("dsv4_canary_peer_result", role, peer="10.0.0.9"): f"1x{n}",
            canary("dsv4_canary_last_success_timestamp_seconds", role): f"1+30x{n}",
            canary("dsv4_canary_guard_required", role): f"1x{n}",
            canary("dsv4_canary_guard_present", role): f"1x{n}",
            canary("dsv4_engine_wedged", role): f"0x{n}",
            canary("dsv4_engine_wedge_info", role, kind="generation"): f"0x{n}",
            canary("dsv4_canary_tokens_total", role, kind="completion"): f"0+60x{n}",
            engine(f"{prefix}num_running_reqs", role, tp_rank="0"): f"4x{n}",
            engine(f"{prefix}num_requests_total", role): f"0+20x{n}",
            engine(f"{prefix}generation_tokens_total", role): f"0+12000x{n}",
            engine(f"{prefix}kv_transfer_speed_gb_s_sum", role): f"0+400x{n}",
            engine(f"{prefix}kv_transfer_speed_gb_s_count", role): f"0+20x{n}",
            engine(f"{prefix}kv_transfer_total_mb_sum", role): f"0+2000x{n}",
            engine(f"{prefix}kv_transfer_total_mb_count", role): f"0+20x{n}",
        }
        found |= {
            canary("dsv4_canary_probes_total", role, probe="echo", outcome=outcome, cache="cold"): values
            for outcome, values in (("pass", f"0+1x{n}"), ("fail", f"0x{n}"), ("busy", f"0x{n}"))
        }
        for cache in ("cold", "device", "host"):
            found[canary("dsv4_canary_window_failures", role, cache=cache)] = f"0x{n}"
            found[canary("dsv4_canary_corruption_ratio", role, cache=cache)] = f"0x{n}"
        for what in ("probe", "host", "metrics", "length"):
            found[canary("dsv4_canary_blind", role, what=what)] = f"0x{n}"
    found[engine(f"{prefix}realtime_tokens_total", "decode", mode="decode", tp_rank="0")] = f"0+12000x{n}"
    found[engine(f"{prefix}spec_accept_length", "decode", tp_rank="0")] = f"2.5x{n}"
    found[engine(f"{prefix}load_back_tokens_total", "prefill", pool="kv")] = f"0+500x{n}"
    for cache in ("cold", "device", "host"):
        found[engine("dsv4_guard_tool_calls_total", "decode", outcome="valid", cache=cache)] = f"0+10x{n}"
        for outcome in ("leaked", "loop", "invalid_json", "schema", "unknown_tool"):
            found[engine("dsv4_guard_tool_calls_total", "decode", outcome=outcome, cache=cache)] = f"0x{n}"
    return found


@dataclass(frozen=True)
class Case:
    """A situation: series, and the names of all alerts that fire at certain minutes (none: an empty set)."""

    name: str
    series: Series
    firing: dict[int, set[str]]
    labels: dict[str, str] = field(default_factory=dict)
    """Labels that some firing alert must carry at the last minute."""
    never: dict[str, str] = field(default_factory=dict)
    """Labels that no firing alert may carry together at the last minute."""
    groups: tuple[str, ...] = ()
    """Groups of rules to evaluate, for the sake of speed over long histories; all when empty."""

    def document(self, rules: str, order: Sequence[str]) -> dict[str, Any]:
        """The test file for promtool.

        `order`: the groups in the order in which they are evaluated. Without it promtool takes any, anew at each run,
        and what an alert reads of another group's records is then sometimes an interval old.
        """
        return {
            "rule_files": [rules],
            "evaluation_interval": "30s",
            "group_eval_order": list(order),
            "tests": [
                {
                    "interval": "30s",
                    "input_series": [
                        {"series": series, "values": values}
                        for series, values in self.series.items()
                        if values is not None
                    ],
                    "promql_expr_test": [*self._checks()],
                }
            ],
        }

    def _checks(self) -> list[dict[str, Any]]:
        checks = [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"}) > bool 0',
                "eval_time": f"{minute}m",
                "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(names)],
            }
            for minute, names in self.firing.items()
        ]
        for wanted, samples in ((self.labels, [{"labels": "{}", "value": 1}]), (self.never, [])):
            if wanted:
                chosen = ",".join(f'{name}="{value}"' for name, value in wanted.items())
                checks.append(
                    {
                        "expr": f'count(ALERTS{{alertstate="firing",{chosen}}}) > bool 0',
                        "eval_time": f"{max(self.firing)}m",
                        "exp_samples": samples,
                    }
                )
        return checks


def differing(samples: int, *changes: Series, prefix: str = "sglang:") -> Series:
    """A healthy pair but for some series."""
    series = healthy(samples, prefix)
    for change in changes:
        series |= change
    return series


def loading(role: str, samples: int, then: int = 0) -> Series:
    """A pod whose engine loads for `samples`, in a fresh pod, and is healthy for `then` more."""
    found: Series = {}
    for selector, values in healthy(samples + then).items():
        if values is None or f'role="{role}"' not in selector:
            continue
        if 'container="engine"' in selector:
            found[selector] = f"_x{samples} {values.replace(f'x{samples + then}', f'x{then}')}" if then else None
    late = f" 1x{then}" if then else ""
    found |= {
        canary("dsv4_canary_ready", role): f"0x{samples}{late}",
        canary("dsv4_canary_engine_healthy", role): f"0x{samples}{late}",
        canary("dsv4_canary_peer_result", role, peer="10.0.0.9"): f"-1x{samples}{late}",
        canary("dsv4_canary_last_success_timestamp_seconds", role): f"0x{samples}"
        + (f" {samples * 30}+30x{then}" if then else ""),
        canary("dsv4_canary_guard_present", role): f"0x{samples}{late}",
        canary("dsv4_canary_blind", role, what="metrics"): f"1x{samples}{' 0x' + str(then) if then else ''}",
        canary("dsv4_canary_probes_total", role, probe="echo", outcome="pass", cache="cold"): f"0x{samples}"
        + (f" 1+1x{then}" if then else ""),
    }
    return found


def over_time(*phases: tuple[Conditions | None, int]) -> Series:
    """The operator's conditions in phases of so many samples; None: no series of the object comes at all."""
    found: Series = {}
    for kind, status in product(ConditionType, ("True", "False", "Unknown")):
        parts, was = [], False
        for conditions, samples in phases:
            shown = conditions is not None and conditions[kind] == status
            ends = was and not shown
            parts += ["stale"] if ends else []
            parts.append(f"1x{samples - 1}" if shown else f"_x{samples - ends}")
            was = shown
        selector = operator("dsv4_operator_condition", type=kind, status=status)
        found[selector] = " ".join(parts) if any(part.startswith("1") for part in parts) else None
    return found


def live(damaged: dict[str, str], role: str = "decode") -> Series:
    """Live tool calls: `tier/outcome` to values."""
    return {
        engine("dsv4_guard_tool_calls_total", role, outcome=key.partition("/")[2], cache=key.partition("/")[0]): values
        for key, values in damaged.items()
    }
