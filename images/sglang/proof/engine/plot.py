"""Draw results/engine.jsonl: how far each request under a race moved from its answer when alone.

python3 images/sglang/proof/engine/plot.py images/sglang/proof/results/engine.jsonl docs/img/gpu-race.svg
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
from compare import MARGIN

matplotlib.use("svg")
plt.rcParams["svg.hashsalt"] = "dsv4"

GOOD, BAD = "#2a7f62", "#c0392b"


def raced(result: dict[str, Any]) -> list[tuple[float, bool]]:
    """(nats, whether it was judged damaged) of every request of an arm."""
    found = []
    for entries in result["rounds"]:
        for entry in entries:
            if "nats" in entry:
                found.append((entry["nats"], entry["outcome"] != "pass"))
            else:
                first, second = (gap or 0.0 for gap, _ in entry["distances"])
                # Sound, yet far apart at the second token: the first token flipped, a close call between two, and what
                # follows it answers another text (compare.damaged).
                flipped = not entry["wrong"] and second > MARGIN
                found.append((first if flipped else max(first, second), entry["wrong"]))
    return found


def main(source: str, target: str) -> None:
    """Three panels: the race by the driver's own requests, with shorter loads, and by the canary's drift probes."""
    arms = {entry["arm"]: entry for entry in map(json.loads, Path(source).read_text().splitlines())}
    figure, axes = plt.subplots(1, 3, figsize=(13.5, 3.6), sharey=True, constrained_layout=True)
    panels = (
        (
            "requests of the driver",
            [
                ("race2-default", "SGLang's\ndefault"),
                ("race2-early-off", "early send off\n(as rendered)"),
                ("race2-guard", "plugin, early\nsend on"),
            ],
        ),
        (
            "SGLang's default, each layer's load slowed by",
            [
                ("race-delay-0", "nothing"),
                ("race-delay-1000000", "0.5 ms"),
                ("race-delay-5000000", "2.5 ms"),
                ("race-delay-20000000", "10 ms"),
                ("race2-default", "40 ms"),
            ],
        ),
        (
            "drift probes of the canary",
            [
                ("canary-default", "SGLang's\ndefault"),
                ("canary-early-off", "early send off\n(as rendered)"),
                ("canary-guard", "plugin, early\nsend on"),
            ],
        ),
    )
    jitter = random.Random(1)
    for axis, (title, columns) in zip(axes, panels, strict=True):
        for x, (name, _) in enumerate(columns):
            points = raced(arms[name])
            wrong = sum(bad for _, bad in points)
            for nats, bad in points:
                axis.plot(x + jitter.uniform(-0.18, 0.18), nats, "o", ms=4, alpha=0.75, color=BAD if bad else GOOD)
            axis.text(x, 1.28, f"{wrong} of {len(points)}", ha="center", color=BAD if wrong else GOOD)
        axis.set_xticks(range(len(columns)), [label for _, label in columns])
        axis.set_xlim(-0.5, len(columns) - 0.5)
        axis.set_ylim(0, 1.4)
        axis.set_title(title, fontsize=10)
        axis.grid(axis="y", alpha=0.3)
    axes[0].set_ylabel("logprob moved by (nats)")
    figure.suptitle(
        "HiCache load-back raced by an early send: real SGLang 0.5.17, one H200, loads delayed; damaged in red",
        fontsize=11,
    )
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
