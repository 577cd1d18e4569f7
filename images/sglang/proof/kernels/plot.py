"""Draw kernels.json: python3 plot.py kernels.json OUT.svg [OUT.png]. Needs matplotlib."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

COLOURS = {1: "#8fb8de", 8: "#5b8fc9", 32: "#2f68a8", 128: "#174a85", 256: "#08264f"}


def _label(context: int) -> str:
    return f"{context >> 20}M" if context >= 1 << 20 else f"{context // 1024}k"


def _decode(axis: Any, result: dict[str, Any]) -> None:
    rows = [row for row in result["decode"] if row.get("rows_per_sequence") == 1]
    contexts = sorted({row["context"] for row in rows})
    for count, colour in COLOURS.items():
        mine = [row for row in rows if row["rows"] == count]
        axis.plot(
            [row["context"] for row in mine], [row["gbps"] for row in mine], marker="o", color=colour, label=count
        )
    read = result["ceilings"]["read_gbps"]
    axis.axhline(read, color="#b3202a", linestyle="--", linewidth=1)
    axis.axhline(0.8 * read, color="#b3202a", linestyle=":", linewidth=1)
    axis.text(contexts[0], read, " read ceiling, measured", va="bottom", color="#b3202a", fontsize=8)
    axis.text(contexts[0], 0.8 * read, " 80 %", va="bottom", color="#b3202a", fontsize=8)
    axis.set_xscale("log", base=2)
    axis.set_xticks(contexts, [_label(c) for c in contexts])
    axis.set_ylim(0, read * 1.12)
    axis.set_xlabel("context, tokens")
    axis.set_ylabel("keys read, GB/s")
    axis.set_title("decode: bandwidth", fontsize=10)
    axis.legend(title="rows", fontsize=8, loc="lower right")


def _ratio(axis: Any, result: dict[str, Any]) -> None:
    rows = [row for row in result["decode"] if row.get("rows_per_sequence") == 1]
    contexts = sorted({row["context"] for row in rows})
    for count, colour in COLOURS.items():
        mine = [row for row in rows if row["rows"] == count and isinstance(row.get("fp8_us"), float)]
        axis.plot([r["context"] for r in mine], [r["us"] / r["fp8_us"] for r in mine], marker="o", color=colour)
    axis.axhline(256 / 132, color="#555555", linestyle="--", linewidth=1)
    axis.text(contexts[0], 256 / 132, " bytes of a slot, 256 : 132", va="bottom", color="#555555", fontsize=8)
    axis.set_xscale("log", base=2)
    axis.set_xticks(contexts, [_label(c) for c in contexts])
    axis.set_ylim(0, 2.5)
    axis.set_xlabel("context, tokens")
    axis.set_title("decode: time, bf16 over DeepGEMM fp8", fontsize=10)


def _prefill(axis: Any, result: dict[str, Any]) -> None:
    rows = result["prefill"]
    contexts = sorted({row["context"] for row in rows})
    for count, colour in ((512, "#8fb8de"), (2048, "#2f68a8"), (8192, "#08264f")):
        mine = [row for row in rows if row["rows"] == count]
        axis.plot([r["context"] for r in mine], [r["tflops"] for r in mine], marker="o", color=colour, label=count)
    ceiling = result["ceilings"]["bf16_tflops"]
    axis.axhline(ceiling, color="#b3202a", linestyle="--", linewidth=1)
    axis.text(contexts[0], ceiling, " bf16 product, measured", va="bottom", color="#b3202a", fontsize=8)
    axis.set_xscale("log", base=2)
    axis.set_xticks(contexts, [_label(c) for c in contexts])
    axis.set_ylim(0, ceiling * 1.12)
    axis.set_xlabel("context, tokens")
    axis.set_ylabel("TFLOP/s")
    axis.set_title("prefill: rate of needed work", fontsize=10)
    axis.legend(title="query rows", fontsize=8, loc="lower right")


def main() -> None:
    result: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    mpl.rcParams.update({"font.size": 9, "svg.hashsalt": "dsv4", "font.family": "DejaVu Sans"})
    figure, axes = plt.subplots(1, 3, figsize=(12.6, 3.9), constrained_layout=True)
    for draw, axis in zip((_decode, _ratio, _prefill), axes, strict=True):
        draw(axis, result)
        axis.grid(alpha=0.3)
    environment = result["environment"]
    figure.suptitle(
        f"Index-K in bf16 on {environment['gpu']} (torch {environment['torch']}, Triton {environment['triton']})",
        fontsize=11,
    )
    for name in sys.argv[2:]:
        figure.savefig(name, dpi=140, metadata={"Date": None} if name.endswith(".svg") else None)


if __name__ == "__main__":
    main()
