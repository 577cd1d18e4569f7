"""A report as one HTML file that needs nothing else: style, charts and tables inside, no script. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from dsv4_canary.soak import charts
from dsv4_canary.soak.markdown import again_text, rate_text, round_rows, settings_line, signature_rows, summary_rows
from dsv4_canary.soak.verdict import percent

Json = Mapping[str, Any]

_STYLE = """
:root{--bg:#fff;--card:#f7f8fa;--text:#1b1f24;--soft:#5b6570;--line:#dde1e6;--clean:#5b8db8;--corrupted:#c8352b;
--failed:#e0a030;--budget:#9277c0;--baseline:#8b96a3}
@media(prefers-color-scheme:dark){:root{--bg:#15181c;--card:#1d2126;--text:#e6e9ed;--soft:#9aa4af;--line:#343a42;
--clean:#6f9fca;--corrupted:#ef6a5f;--failed:#e6b35a;--budget:#ad96d8;--baseline:#8b96a3}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1080px;padding:28px 20px 48px;background:var(--bg);color:var(--text);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
h1{font-size:24px;margin:0 0 4px}h2{font-size:17px;margin:32px 0 10px}
.sub{color:var(--soft);font-size:13px;margin:0 0 18px;overflow-wrap:anywhere}
.verdict{border-left:5px solid var(--clean);background:var(--card);padding:12px 16px;border-radius:4px;margin:0 0 14px}
.verdict.corrupted{border-color:var(--corrupted)}.verdict.unusable,.verdict.nothing{border-color:var(--failed)}
.verdict.slips{border-color:var(--budget)}.verdict b{text-transform:uppercase;letter-spacing:.04em;font-size:13px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(170px,1fr));gap:10px;margin:0 0 6px}
.tile{background:var(--card);border-radius:6px;padding:12px 14px}
.tile .n{font-size:26px;font-weight:600;line-height:1.2}.tile .t,.tile .d{color:var(--soft);font-size:12.5px}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:14px}
figure{margin:0;background:var(--card);border-radius:6px;padding:12px 14px}
figcaption{font-weight:600;font-size:14px;margin-bottom:6px}
svg{width:100%;height:auto;display:block}svg text{font-size:12px;fill:var(--soft)}
.grid{stroke:var(--line);stroke-width:1;fill:none}.whisker{stroke:var(--text);stroke-width:1.5;fill:none}
.mark{stroke:var(--text);stroke-width:1.2;stroke-dasharray:4 3;fill:none}
.clean{fill:var(--clean)}.corrupted{fill:var(--corrupted)}.failed{fill:var(--failed)}.budget{fill:var(--budget)}
.baseline{fill:var(--baseline)}
.legend{display:flex;flex-wrap:wrap;gap:4px 14px;font-size:12.5px;color:var(--soft);margin-top:6px}
.legend i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:5px}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:13.5px}
th,td{text-align:left;padding:6px 10px 6px 0;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--soft);font-weight:600}code{font-size:12.5px;overflow-wrap:anywhere}
.foot{margin-top:24px}.none{color:var(--soft);margin:24px 0;text-align:center}li{margin:3px 0}
""".strip()

_COLOURS = ("clean", "corrupted", "failed", "budget")
_LABELS = {"clean": "clean", "corrupted": "corrupted", "failed": "no reply", "budget": "token limit"}


def page(report: Json) -> str:
    """The whole page."""
    load, baseline = report["phases"]["load"], report["phases"]["baseline"]
    tag, verdict = escape(report["settings"]["tag"]), escape(report["verdict"])
    notes = "".join(f"<li>{escape(note)}</li>" for note in report["notes"])
    body = [
        f"<h1>Soak {tag}</h1>",
        f'<p class="sub">{escape(_when(report))}<br>{escape(settings_line(report["settings"]))}</p>',
        f'<div class="verdict {verdict}"><b>{verdict}</b><br>{escape(report["sentence"])}</div>',
        f"<ul>{notes}</ul>" if notes else "",
        _tiles(report),
        "<h2>Charts</h2>",
        '<div class="charts">',
        _figure("Corruption over time", charts.over_time(report["series"]), _legend(_shown(report["series"]))),
        _figure("Corruption by round", charts.by_round(load["byRound"])),
        _figure(
            "Corruption by signature",
            charts.by_signature(load["signatures"], baseline["signatures"]),
            _legend(("corrupted", "baseline"), {"corrupted": "under load", "baseline": "baseline"})
            if load["signatures"] or baseline["signatures"]
            else "",
        ),
        _figure("Latency of whole replies", charts.latency(load["histogram"], load["latency"]["all"])),
        "</div>",
        "<h2>Figures</h2>",
        _table(("figure", "value"), summary_rows(report)),
    ]
    if load["signatures"]:
        header = ("signature", "meaning", "severity", "replies", "sessions", "in baseline", "evidence (masked)")
        body += ["<h2>Signatures</h2>", _table(header, signature_rows(report), code=6)]
    body += [
        "<h2>Rounds</h2>",
        _table(("round", "corrupted", "no reply", "p50", "p95", "prompt tokens"), round_rows(load)),
    ]
    for title, rows in (("Cache", load["byCache"]), ("Tools", load["byTool"]), ("Streaming", load["byStream"])):
        shown = [(name, rate_text(rate)) for name, rate in rows.items()]
        if shown:
            body += [f"<h2>{title}</h2>", _table((title.lower(), "corrupted replies"), shown)]
    if load["details"]:
        body += ["<h2>What the endpoint said</h2>", "<ul>"]
        body += [f"<li><code>{escape(text)}</code></li>" for text in load["details"]] + ["</ul>"]
    body.append(
        '<p class="sub foot">Rates are with Wilson\'s 95 % interval; sessions are the unit of every test. Signatures '
        "are those of the canary's catalogue.</p>"
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Soak {tag}: {verdict}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(part for part in body if part)
        + "\n</body></html>\n"
    )


def _when(report: Json) -> str:
    started, ended = report["startedAt"], report["finishedAt"]
    text = f"{_utc(started)} to {_utc(ended)}" if started else _utc(ended)
    if report["starts"] > 1:
        text += f", resumed {report['starts'] - 1} times" if report["starts"] > 2 else ", resumed once"
    return text + (", interrupted" if report["interrupted"] else "")


def _utc(value: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(value))


def _tiles(report: Json) -> str:
    load, baseline, found = report["phases"]["load"], report["phases"]["baseline"], report["attribution"]
    sessions, alone, failed = load["corruptedSessions"], baseline["corruptedSessions"], load["failedReplies"]
    interval = f"95 % interval {percent(sessions['low'])} to {percent(sessions['high'])}"
    tiles = (
        (percent(sessions["share"]), "sessions corrupted", f"{sessions['events']} of {sessions['trials']}; {interval}"),
        (percent(alone["share"]), "in the baseline", f"{alone['events']} of {alone['trials']} sessions, one at a time"),
        (
            str(found["engine"]),
            "replies put on the engine",
            again_text(found),
        ),
        (str(failed["events"]), "requests without a reply", f"of {failed['trials']} sent"),
    )
    cells = (
        f'<div class="tile"><div class="n">{escape(number)}</div><div class="t">{escape(title)}</div>'
        f'<div class="d">{escape(detail)}</div></div>'
        for number, title, detail in tiles
    )
    return f'<div class="tiles">{"".join(cells)}</div>'


def _shown(series: Json) -> tuple[str, ...]:
    """Verdicts that occur; the two main ones always."""
    present = {name for item in series["bins"] for name, count in item.items() if count}
    return tuple(name for name in _COLOURS if name in present or name in ("clean", "corrupted"))


def _legend(names: Sequence[str], labels: Mapping[str, str] = _LABELS) -> str:
    parts = (f'<span><i style="background:var(--{name})"></i>{escape(labels[name])}</span>' for name in names)
    return f'<div class="legend">{"".join(parts)}</div>'


def _figure(caption: str, chart: str, legend: str = "") -> str:
    return f"<figure><figcaption>{escape(caption)}</figcaption>{chart}{legend}</figure>"


def _table(header: Sequence[str], rows: Sequence[Sequence[object]], code: int | None = None) -> str:
    """A table; cells of column ``code`` are set as code."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    lines = []
    for row in rows:
        cells = [escape(str(item)) for item in row]
        if code is not None and cells[code]:
            cells[code] = f"<code>{cells[code]}</code>"
        lines.append("<tr>" + "".join(f"<td>{item}</td>" for item in cells) + "</tr>")
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
