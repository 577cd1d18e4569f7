"""Markdown tables of kernels.json: python3 tables.py kernels.json"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

CONTEXTS = (4096, 16384, 65536, 131072, 262144, 1048576)


def _label(context: int) -> str:
    return f"{context >> 20}M" if context >= 1 << 20 else f"{context // 1024}k"


def _ratio(row: dict[str, Any], name: str) -> str:
    other = row.get(name)
    return f"{row['us'] / other:.2f}" if isinstance(other, float) else "-"


def main() -> None:
    result: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    out = sys.stdout.write
    ceilings = result["ceilings"]
    out(
        f"Ceilings measured in the same run: copy {ceilings['copy_gbps']:,.0f} GB/s (read and written), read "
        f"{ceilings['read_gbps']:,.0f} GB/s, bf16 product {ceilings['bf16_tflops']:.0f} TFLOP/s.\n\n"
    )
    out("Decode: microseconds, (share of the read ceiling), time over DeepGEMM's fp8.\n\n")
    out("| rows | " + " | ".join(map(_label, CONTEXTS)) + " |\n|" + "---|" * (len(CONTEXTS) + 1) + "\n")
    cells = {(r["rows"], r["context"]): r for r in result["decode"] if r.get("rows_per_sequence") == 1}
    for rows in sorted({rows for rows, _ in cells}):
        line = []
        for context in CONTEXTS:
            row = cells.get((rows, context))
            line.append(f"{row['us']:,.1f} ({row['of_read']:.2f}) {_ratio(row, 'fp8_us')}" if row else "")
        out(f"| {rows} | " + " | ".join(line) + " |\n")
    out("\n| batch of ragged lengths | bf16 us | of read | fp8 us |\n|---|---|---|---|\n")
    for row in result["decode"]:
        if "longest" in row:
            fp8 = row.get("fp8_us")
            span = f"{row['rows']} rows, {_label(row['longest'] // 64)} to {_label(row['longest'])} tokens"
            other = f"{fp8:.1f}" if isinstance(fp8, float) else str(fp8)
            out(f"| {span} | {row['us']:.1f} | {row['of_read']:.2f} | {other} |\n")
    out("\nPrefill: the last rows of one request, causal.\n\n")
    out("| rows | context | ms | TFLOP/s | of product | over fp8 |\n|---|---|---|---|---|---|\n")
    for row in result["prefill"]:
        best = [v for v in (row.get("fp8_paged_us"), row.get("fp8_gathered_us")) if isinstance(v, float)]
        ratio = f"{row['us'] / min(best):.2f}" if best else "-"
        out(
            f"| {row['rows']} | {_label(row['context'])} | {row['us'] / 1e3:,.2f} | {row['tflops']:.0f} | "
            f"{row['of_product']:.2f} | {ratio} |\n"
        )
    out("\n| kernel | rows | us | GB/s |\n|---|---|---|---|\n")
    for row in result.get("small", []):
        if row.get("config", "None") == "None":
            out(f"| {row['kernel']} | {row['rows']} | {row['us']:.1f} | {row['gbps']:,.0f} |\n")


if __name__ == "__main__":
    main()
