"""Charts as inline SVG: no script, no outside file, colours from the page's style sheet. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

Json = Mapping[str, Any]

WIDTH, HEIGHT = 640, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 14, 46
_PLOT_W = WIDTH - _LEFT - _RIGHT
_PLOT_H = HEIGHT - _TOP - _BOTTOM
_STACK = ("clean", "budget", "failed", "corrupted")


def ticks(highest: float, *, whole: bool = False, most: int = 5) -> list[float]:
    """Round values from 0 up to at least ``highest``, at most ``most`` steps."""
    if highest <= 0:
        return [0.0, 1.0]
    raw = highest / most
    scale = 10.0 ** math.floor(math.log10(raw))
    step = next(scale * factor for factor in (1, 2, 2.5, 5, 10) if scale * factor >= raw * (1 - 1e-9))
    if whole:
        step = max(1.0, math.ceil(step))
    return [step * number for number in range(math.ceil(highest / step - 1e-9) + 1)]


def over_time(series: Json) -> str:
    """Replies of the load by the moment at which they ended, stacked by verdict."""
    bins, width = series["bins"], series["binSeconds"]
    if not bins:
        return empty("no replies")
    marks = ticks(max(sum(item.values()) for item in bins), whole=True)
    parts = _frame(marks, "replies", [str(round(mark)) for mark in marks])
    span = width * len(bins)
    parts += _x_numbers(ticks(span, most=8), span, "seconds since the load began")
    step = _PLOT_W / len(bins)
    for number, item in enumerate(bins):
        base = 0
        for name in _STACK:
            count = item[name]
            if count:
                top, bottom = _y(base + count, marks[-1]), _y(base, marks[-1])
                parts.append(
                    f'<rect class="{name}" x="{_LEFT + number * step + 0.5:.1f}" y="{top:.1f}" '
                    f'width="{max(1.0, step - 1):.1f}" height="{bottom - top:.1f}">'
                    f"<title>{count} {name}, {number * width:.0f} to {(number + 1) * width:.0f} s</title></rect>"
                )
            base += count
    return _svg(parts, "Replies over time by verdict")


def by_round(rounds: Sequence[Json]) -> str:
    """Share of corrupted replies of each round, with its interval."""
    known = [item for item in rounds if item["corrupted"]["trials"]]
    if not known:
        return empty("no replies")
    highest = min(100.0, 100 * max(item["corrupted"]["high"] for item in known))
    marks = [mark for mark in ticks(highest) if mark <= 100] or [0.0, 100.0]
    scale = max(marks[-1], highest)
    parts = _frame(marks, "corrupted, %", [f"{mark:g}" for mark in marks], scale)
    step = _PLOT_W / len(known)
    every = max(1, math.ceil(len(known) / 16))
    for number, item in enumerate(known):
        rate, middle = item["corrupted"], _LEFT + (number + 0.5) * step
        low, high = _y(100 * rate["low"], scale), _y(100 * rate["high"], scale)
        top, cap = _y(100 * rate["share"], scale), min(6.0, step / 4)
        half = min(26.0, step * 0.32)
        parts += [
            f'<rect class="corrupted" x="{middle - half:.1f}" y="{top:.1f}" width="{2 * half:.1f}" '
            f'height="{_y(0, scale) - top:.1f}"><title>round {item["round"]}: {rate["events"]} of {rate["trials"]}'
            "</title></rect>",
            f'<path class="whisker" d="M{middle:.1f} {low:.1f}V{high:.1f}M{middle - cap:.1f} {high:.1f}h{2 * cap:.1f}'
            f'M{middle - cap:.1f} {low:.1f}h{2 * cap:.1f}"/>',
        ]
        if number % every == 0:
            parts.append(_text(middle, HEIGHT - _BOTTOM + 16, str(item["round"]), "middle"))
    parts.append(_text(_LEFT + _PLOT_W / 2, HEIGHT - 8, "round (bars: observed, whiskers: 95 % interval)", "middle"))
    return _svg(parts, "Share of corrupted replies by round")


def by_signature(load: Json, baseline: Json) -> str:
    """Replies with each signature, under load and in the baseline."""
    names = list(load) + [name for name in baseline if name not in load]
    if not names:
        return empty("no signature in any reply")
    counts = [(name, load.get(name, {}).get("replies", 0), baseline.get(name, {}).get("replies", 0)) for name in names]
    marks = ticks(max(max(first, second) for _, first, second in counts), whole=True)
    row, left = 30, 48
    height = row * len(names) + 50
    room = WIDTH - left - 44
    bottom = 8 + row * len(names)
    parts = []
    for mark in marks:
        x = left + room * mark / marks[-1]
        parts.append(f'<path class="grid" d="M{x:.1f} 8V{bottom}"/>')
        parts.append(_text(x, bottom + 16, f"{mark:g}", "middle"))
    for number, (name, under, alone) in enumerate(counts):
        y = 8 + row * number
        parts.append(_text(left - 8, y + 19, name, "end"))
        for kind, count, offset in (("corrupted", under, 4), ("baseline", alone, 15)):
            length = room * count / marks[-1]
            parts.append(
                f'<rect class="{kind}" x="{left}" y="{y + offset}" width="{length:.1f}" height="10">'
                f"<title>{name}: {count}</title></rect>"
            )
            if count:
                parts.append(_text(left + length + 5, y + offset + 9, str(count), "start"))
    parts.append(_text(left + room / 2, height - 8, "replies", "middle"))
    return _svg(parts, "Replies by signature, under load and in the baseline", height)


def latency(histogram: Json, times: Json) -> str:
    """Times of whole replies, with median and 95th percentile."""
    counts, width = histogram["counts"], histogram["binSeconds"]
    if not counts:
        return empty("no whole reply")
    marks = ticks(max(counts), whole=True)
    parts = _frame(marks, "replies", [f"{mark:g}" for mark in marks])
    span = width * len(counts)
    parts += _x_numbers(ticks(span, most=8), span, "seconds per reply")
    step = _PLOT_W / len(counts)
    for number, count in enumerate(counts):
        if count:
            top = _y(count, marks[-1])
            parts.append(
                f'<rect class="clean" x="{_LEFT + number * step + 0.5:.1f}" y="{top:.1f}" '
                f'width="{max(1.0, step - 1):.1f}" height="{_y(0, marks[-1]) - top:.1f}"><title>{count} replies, '
                f"{number * width:.3g} to {(number + 1) * width:.3g} s</title></rect>"
            )
    for level, name in enumerate(("p50", "p95")):
        x = _LEFT + _PLOT_W * min(1.0, times[name] / span)
        parts.append(f'<path class="mark" d="M{x:.1f} {_TOP}V{HEIGHT - _BOTTOM}"/>')
        # Beside the line, on the side that has room; one below the other so that close ones stay readable.
        right = x < _LEFT + _PLOT_W * 0.8
        parts.append(_text(x + (4 if right else -4), _TOP + 10 + 14 * level, name, "start" if right else "end"))
    return _svg(parts, "Time of whole replies")


def empty(text: str) -> str:
    """In place of a chart without data."""
    return f'<p class="none">{escape(text)}</p>'


def _y(value: float, highest: float) -> float:
    return _TOP + _PLOT_H * (1 - value / highest)


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _frame(marks: Sequence[float], title: str, labels: Sequence[str], highest: float | None = None) -> list[str]:
    """Horizontal grid with labels, and the title of the vertical axis."""
    highest = marks[-1] if highest is None else highest
    parts = []
    for mark, label in zip(marks, labels, strict=True):
        y = _y(mark, highest)
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}"/>')
        parts.append(_text(_LEFT - 8, y + 4, label, "end"))
    middle = _TOP + _PLOT_H / 2
    parts.append(f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">{escape(title)}</text>')
    return parts


def _x_numbers(marks: Sequence[float], span: float, title: str) -> list[str]:
    parts = [
        _text(_LEFT + _PLOT_W * mark / span, HEIGHT - _BOTTOM + 16, f"{mark:g}", "middle")
        for mark in marks
        if mark <= span * 1.001
    ]
    return [*parts, _text(_LEFT + _PLOT_W / 2, HEIGHT - 8, title, "middle")]


def _svg(parts: Sequence[str], label: str, height: float = HEIGHT) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(label)}">' + "".join(parts) + "</svg>"
