"""Draw recall.json: python3 plot.py recall.json OUT.svg [OUT.png]. Needs matplotlib."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

COLOURS = {"bf16": "#0b6e4f", "fp8": "#c97b00", "fp4": "#b3202a"}
MARKS = {"bf16": "o", "fp8": "s", "fp4": "^"}
TITLES = {"topics": "topics: keys in clusters, queries look for some", "noise": "noise: independent keys, hardest case"}


def main() -> None:
    result: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    mpl.rcParams.update({"font.size": 10, "svg.hashsalt": "dsv4", "font.family": "DejaVu Sans"})
    figure, axes = plt.subplots(1, 2, figsize=(9.6, 3.9), sharey=True, constrained_layout=True)
    for axis, kind in zip(axes, ("topics", "noise"), strict=True):
        rows = [row for row in result["rows"] if row["keys"] == kind]
        x = [row["context"] for row in rows]
        for name, colour in COLOURS.items():
            axis.plot(x, [row[name]["recall"] for row in rows], marker=MARKS[name], color=colour, label=name)
            axis.fill_between(
                x, [row[name]["worst"] for row in rows], [row[name]["recall"] for row in rows], color=colour, alpha=0.15
            )
        axis.set_xscale("log", base=2)
        axis.set_xticks(x, [f"{c // 1024}k" if c < 1 << 20 else f"{c >> 20}M" for c in x])
        axis.set_xlabel("context, tokens (four to a slot)")
        axis.set_title(TITLES[kind], fontsize=10)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("share of the best 512 slots selected")
    axes[0].legend(title="index-K", loc="lower left")
    figure.suptitle(
        "Synthetic keys and queries: what the sparse top-k selects (band: down to the worst query)", fontsize=11
    )
    for name in sys.argv[2:]:
        figure.savefig(name, dpi=140, metadata={"Date": None} if name.endswith(".svg") else None)


if __name__ == "__main__":
    main()
