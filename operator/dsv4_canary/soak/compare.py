"""Two soaks against each other: do they differ, by how much, and in which settings. Pure but for reading files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsv4_canary.soak.markdown import p_text, rate_text
from dsv4_canary.soak.report import VERSION
from dsv4_canary.soak.stats import ALPHA, Rate, effect, fisher_exact, wilson
from dsv4_canary.soak.verdict import EXIT_CLEAN, EXIT_CORRUPTED, EXIT_UNUSABLE, percent

Json = Mapping[str, Any]


class ReportError(ValueError):
    """A file that is no report; the text is one line for the user."""


_MEASURES = (
    ("corruptedSessions", "corrupted sessions"),
    ("corruptedReplies", "corrupted replies"),
    ("failedReplies", "requests without a reply"),
)


def read_report(path: Path) -> dict[str, Any]:
    """Read a report. Raises ReportError."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ReportError(f"{path}: cannot be read ({error.strerror}); give the report's JSON file") from None
    except (ValueError, RecursionError):
        raise ReportError(f"{path}: is no JSON; give the report's JSON file, not the journal") from None
    if not isinstance(value, dict) or value.get("kind") != "dsv4-soak":
        raise ReportError(f"{path}: kind: is not dsv4-soak; give the JSON report of a soak")
    if value.get("version") != VERSION:
        raise ReportError(f"{path}: version = {value.get('version')!r}: is not {VERSION}; make the report anew")
    if not isinstance(value.get("settings"), dict):
        raise ReportError(f"{path}: settings: is missing or no object; make the report anew")
    try:
        for name, _ in _MEASURES:
            _rate(value, name)
        _found(value)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ReportError(f"{path}: phases.load: is damaged ({error}); make the report anew") from None
    return value


def _rate(report: Json, name: str) -> Rate:
    raw = report["phases"]["load"][name]
    events, trials = raw["events"], raw["trials"]
    if type(events) is not int or type(trials) is not int:
        raise TypeError(f"{name}: counts must be whole numbers")
    return wilson(events, trials)


def _found(report: Json) -> dict[str, int]:
    return {name: int(item["replies"]) for name, item in report["phases"]["load"]["signatures"].items()}


def compare(a: Json, b: Json) -> dict[str, Any]:
    """Comparison of two reports as a JSON object; B against A."""
    measures = []
    for name, title in _MEASURES:
        first, second = _rate(a, name), _rate(b, name)
        distance = effect(first, second)
        measures.append(
            {
                "measure": name,
                "title": title,
                "a": first.to_json(),
                "b": second.to_json(),
                "pValue": fisher_exact(first.events, first.trials, second.events, second.trials),
                "effect": distance.to_json() if distance else None,
            }
        )
    by_signature = []
    found_a, found_b = _found(a), _found(b)
    replies_a, replies_b = _rate(a, "corruptedReplies").trials, _rate(b, "corruptedReplies").trials
    for name in sorted(found_a.keys() | found_b.keys(), key=lambda item: int(item[1:]) if item[1:].isdigit() else 0):
        # A reply that broke off can carry a signature and is no trial, hence the limits.
        count_a, count_b = min(found_a.get(name, 0), replies_a), min(found_b.get(name, 0), replies_b)
        p_value = fisher_exact(count_a, replies_a, count_b, replies_b)
        by_signature.append({"signature": name, "a": count_a, "b": count_b, "pValue": p_value})
    settings_a, settings_b = a["settings"], b["settings"]
    changed = {
        name: {"a": settings_a.get(name), "b": settings_b.get(name)}
        for name in sorted(settings_a.keys() | settings_b.keys())
        if settings_a.get(name) != settings_b.get(name)
    }
    main = measures[0]
    return {
        "kind": "dsv4-soak-comparison",
        "version": 1,
        "a": settings_a.get("tag"),
        "b": settings_b.get("tag"),
        "differ": float(str(main["pValue"])) < ALPHA,
        "comparable": all(_rate(report, "corruptedSessions").trials for report in (a, b)),
        "sentence": _sentence(a, b, float(str(main["pValue"]))),
        "measures": measures,
        "signatures": by_signature,
        "settings": changed,
        "notes": _notes(a, b, changed),
    }


def _sentence(a: Json, b: Json, p_value: float) -> str:
    first, second = _rate(a, "corruptedSessions"), _rate(b, "corruptedSessions")
    names = [str(report["settings"].get("tag")) for report in (a, b)]
    if names[0] == names[1]:
        names = ["A", "B"]
    distance = effect(first, second)
    if distance is None:
        return "Nothing to compare: one of the runs has no session with a reply."
    if p_value >= ALPHA:
        return (
            f"No difference is proved between {names[0]} and {names[1]} (p = {p_text(p_value)}); one of "
            f"{_points(distance.low)} to {_points(distance.high)} of sessions is compatible with the counts."
        )
    worse, better = (1, 0) if distance.difference > 0 else (0, 1)
    rates = (first, second)
    return (
        f"{names[worse]} corrupts more sessions than {names[better]}: {percent(rates[worse].share)} against "
        f"{percent(rates[better].share)} (p = {p_text(p_value)})."
    )


def _points(share: float) -> str:
    return f"{100 * share:+.1f} points"


def _notes(a: Json, b: Json, changed: Json) -> list[str]:
    notes = []
    load = [name for name in ("sessions", "rounds", "ctx", "shared_ctx", "share", "max_tokens", "concurrency", "stream")
            if name in changed]  # fmt: skip
    if load:
        notes.append(
            f"The load differs ({', '.join(load)}): a difference may come from it and not from the deployment."
        )
    notes += [
        f"{report['settings'].get('tag')} is not whole ({report.get('verdict')})."
        for report in (a, b)
        if report.get("interrupted") or report.get("endpointLost")
    ]
    notes.append(
        "Sessions are the unit of the test; replies of one session depend on each other, so p-values on replies and "
        "signatures are a guide only."
    )
    return notes


def exit_of_comparison(result: Json) -> int:
    """Exit status: nothing to compare is no proof that nothing differs."""
    if not result["comparable"]:
        return EXIT_UNUSABLE
    return EXIT_CORRUPTED if result["differ"] else EXIT_CLEAN


def comparison_text(result: Json) -> str:
    """The comparison for people."""
    lines = [result["sentence"], "", f"  {'':26}{'A: ' + str(result['a']):38}B: {result['b']}"]
    for item in result["measures"]:
        lines.append(f"  {item['title']:26}{rate_text(item['a']):38}{rate_text(item['b'])}")
        if item["effect"]:
            found = item["effect"]
            lines.append(
                f"  {'':26}B minus A {_points(found['difference'])} ({_points(found['low'])} to "
                f"{_points(found['high'])}), odds ratio {found['oddsRatio']:.3g}, p = {p_text(item['pValue'])}"
            )
    lines += [
        f"  {item['signature']:26}{item['a']!s:38}{item['b']!s:20} p = {p_text(item['pValue'])}"
        for item in result["signatures"]
    ]
    if result["settings"]:
        lines += ["", "Settings that differ:"]
        lines += [f"  {name}: {pair['a']} / {pair['b']}" for name, pair in result["settings"].items()]
    lines += ["", *(f"Note: {note}" for note in result["notes"])]
    return "\n".join(lines) + "\n"
