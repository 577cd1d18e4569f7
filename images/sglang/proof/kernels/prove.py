"""Kernels of bf16 index-K on a GPU: correctness against double precision, time against roofline and DeepGEMM's fp8.

    python3 prove.py --out DIR [--budget SECONDS] [--only correct,decode,prefill,small,sweep] [--quick]

Writes DIR/kernels.json after each part, prints tables. `plot.py` draws the JSON anywhere.
"""

# ruff: noqa: E402 - a script that runs from the checkout: it puts its own folders on the path first
from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "src")]

import cases
import checks
import deepgemm
import measure
import timing
import torch
import triton

from dsv4_guard.bf16 import sizes

PARTS = ("correct", "decode", "prefill", "small", "sweep")


def say(line: str) -> None:
    """One line of the report."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def environment() -> dict[str, Any]:
    """What the numbers were measured on."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "deep_gemm": getattr(deepgemm.deep_gemm, "__version__", "present") if deepgemm.deep_gemm else deepgemm.MISSING,
        "decode_config": repr(sizes.decode_config(sizes.chip(torch.device("cuda", 0)))),
        "prefill_config": repr(sizes.prefill_config(sizes.chip(torch.device("cuda", 0)))),
    }


def main() -> int:
    """Run the parts asked for; exit status 1 when a check failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=540.0, help="seconds; later cells are left out and named")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="few cells, to see that all of it runs")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    wanted = args.only.split(",")
    result: dict[str, Any] = {"command": " ".join(sys.argv), "environment": environment()}
    say(json.dumps(result["environment"]))

    def save() -> None:
        result["seconds"] = round(time.monotonic() - begun, 1)
        (args.out / "kernels.json").write_text(json.dumps(result, indent=1))

    clock = measure.Clock(begun, args.budget)
    failed = 0
    if "correct" in wanted:
        result["correct"] = checks.run(say, quick=args.quick)
        failed = sum(not row["ok"] for row in result["correct"])
        save()
    result["ceilings"] = timing.ceilings()
    say("ceilings " + json.dumps({k: round(v, 1) for k, v in result["ceilings"].items()}))
    save()
    big = 256 * 262144 // cases.PAGE
    pool = cases.pool(big // 16 if args.quick else big)
    say(f"pool of {pool.pages} pages ready after {time.monotonic() - begun:.0f} s")
    for name, part in (
        ("decode", measure.decode),
        ("prefill", measure.prefill),
        ("small", measure.small),
        ("sweep", measure.sweep),
    ):
        if name in wanted:
            result[name] = part(say, pool, result["ceilings"], clock, args.quick)
            save()
    if clock.left_out:
        say("left out for lack of time: " + ", ".join(clock.left_out))
    result["left_out"] = clock.left_out
    save()
    say(f"done after {result['seconds']} s, {failed} checks failed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
