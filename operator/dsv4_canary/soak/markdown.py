"""A report as Markdown, for an issue or a pull request. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dsv4_canary.soak.verdict import percent

Json = Mapping[str, Any]


def rate_text(rate: Json) -> str:
    """``18 of 80, 22.5 % (14.7 % to 32.8 %)``."""
    if not rate["trials"]:
        return "no replies"
    interval = f"{percent(rate['low'])} to {percent(rate['high'])}"
    return f"{rate['events']} of {rate['trials']}, {percent(rate['share'])} ({interval})"


def seconds_text(value: float | None) -> str:
    """Seconds for people."""
    if value is None:
        return "-"
    return f"{value:.0f} s" if value >= 100 else f"{value:.3g} s"


def p_text(value: float | None) -> str:
    """A p-value for people."""
    if value is None:
        return "-"
    return "below 0.0001" if value < 1e-4 else f"{value:.2g}"


def failures_text(failures: Mapping[str, int]) -> str:
    """``3 timeout, 1 cut``."""
    return ", ".join(f"{count} {kind}" for kind, count in failures.items()) or "none"


def cell(text: object) -> str:
    """Text safe inside a table cell; markup in it stays text."""
    clean = " ".join(str(text).split())
    for char in "\\`*_{}[]<>|":
        clean = clean.replace(char, "\\" + char)
    return clean


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Lines of a table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return [*lines, *("| " + " | ".join(cell(item) for item in row) + " |" for row in rows), ""]


def summary_rows(report: Json) -> list[tuple[str, str]]:
    """The figures that matter, as (name, value) for people."""
    load, baseline, found = report["phases"]["load"], report["phases"]["baseline"], report["attribution"]
    rows = [
        ("corrupted sessions under load", rate_text(load["corruptedSessions"])),
        ("corrupted replies under load", rate_text(load["corruptedReplies"])),
        ("corrupted sessions in the baseline", rate_text(baseline["corruptedSessions"])),
        ("load above baseline, p (Fisher, one-sided)", p_text(found["loadAboveBaselineP"])),
        ("put on the engine / on the model", f"{found['engine']} / {found['model']} replies"),
        ("asked again alone", again_text(found)),
        ("requests without a whole reply", f"{rate_text(load['failedReplies'])}: {failures_text(load['failures'])}"),
        ("requests not done", str(load["notDone"])),
        ("latency p50 / p95 / max", " / ".join(seconds_text(load["latency"]["all"][q]) for q in ("p50", "p95", "max"))),
        ("generated tokens per second", f"{load['tokensPerSecond']:.0f}"),
    ]
    if report["interrupted"]:
        rows.append(("interrupted", f"yes; {report['inFlightWhenStopped']} requests were in flight"))
    return rows


def again_text(attribution: Json) -> str:
    """What came of asking again."""
    if not attribution["askedAgain"]:
        return "none was asked again"
    return f"{attribution['rightAgain']} of {attribution['askedAgain']} right when asked again alone"


def settings_line(settings: Json) -> str:
    """What was run, in one line."""
    return (
        f"{settings['sessions']} sessions x {settings['rounds']} rounds, {settings['ctx']} words per round on "
        f"{settings['shared_ctx']} shared, {settings['max_tokens']} tokens, timeout {settings['timeout']:g} s, "
        f"stream {settings['stream']}, seed {settings['seed']}, model {settings['model']}, {settings['endpoint']}"
    )


def markdown(report: Json) -> str:
    """The whole report."""
    load = report["phases"]["load"]
    lines = [
        f"# Soak {cell(report['settings']['tag'])}: {report['verdict']}",
        "",
        report["sentence"],
        "",
        cell(settings_line(report["settings"])),
        "",
        *(f"- {cell(note)}" for note in report["notes"]),
        *([""] if report["notes"] else []),
        *table(("figure", "value"), summary_rows(report)),
    ]
    if load["signatures"]:
        lines += ["## Signatures", ""]
        lines += table(
            ("signature", "meaning", "severity", "replies", "sessions", "in baseline", "evidence"),
            signature_rows(report),
        )
    lines += [
        "## Rounds",
        "",
        *table(("round", "corrupted", "no reply", "p50", "p95", "prompt tokens"), round_rows(load)),
    ]
    if load["byCache"]:
        lines += ["## Cache", ""]
        lines += table(("prefix", "corrupted"), [(name, rate_text(rate)) for name, rate in load["byCache"].items()])
    lines.append("Rates are with Wilson's 95 % interval. Signatures are those of the canary's catalogue.")
    return "\n".join(lines) + "\n"


def signature_rows(report: Json) -> list[tuple[object, ...]]:
    """Rows of the table of signatures of the load."""
    alone = report["phases"]["baseline"]["signatures"]
    return [
        (
            name,
            item["meaning"],
            item["severity"] + (", warning" if item["warnsOnly"] else ""),
            item["replies"],
            item["sessions"],
            alone.get(name, {}).get("replies", 0),
            item["excerpt"],
        )
        for name, item in report["phases"]["load"]["signatures"].items()
    ]


def round_rows(phase: Json) -> list[tuple[object, ...]]:
    """Rows of the table of rounds."""
    return [
        (
            item["round"],
            rate_text(item["corrupted"]),
            item["failed"],
            seconds_text(item["latency"]["p50"]),
            seconds_text(item["latency"]["p95"]),
            "-" if item["promptTokens"]["p50"] is None else f"{item['promptTokens']['p50']:.0f}",
        )
        for item in phase["byRound"]
    ]
