# mypy: disable-error-code="import-not-found"
"""Compiles the kernels for GPUs that are not there (Triton brings its assembler): compile_probe.py SOURCE_FOLDER"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

sys.path.insert(0, sys.argv[1])

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from dsv4_guard.bf16 import kernels, prepare, sizes

POINTERS = {
    "q_ptr": "*bf16",
    "weight_ptr": "*fp32",
    "k_ptr": "*bf16",
    "table_ptr": "*i32",
    "length_ptr": "*i32",
    "out_ptr": "*fp32",
    "x_ptr": "*fp32",
    "plan_ptr": "*i32",
    "freqs_ptr": "*fp32",
    "loc_ptr": "*i64",
    "position_ptr": "*i64",
    "gate_ptr": "*bf16",
    "eps": "fp32",
    "gate_scale": "fp32",
}
ALIGNED = ("q_ptr", "weight_ptr", "k_ptr", "out_ptr", "x_ptr", "out_stride", "x_stride")
SHAPE = {"HEADS": 64, "DIM": 128, "PAGE": 64, "COMPILED": True}


def build(kernel: Any, target: int, constants: dict[str, Any], warps: int, registers: int | None) -> dict[str, Any]:
    """Compile, and say what matters."""
    names = kernel.arg_names
    constants = {name: value for name, value in {**SHAPE, **constants}.items() if name in names}
    types = {name: "constexpr" if name in constants else POINTERS.get(name, "i32") for name in names}
    if kernel is prepare.store_keys_kernel:
        types["out_ptr"] = "*bf16"
    if kernel is prepare.query_kernel:
        types["x_ptr"] = "*bf16"
    source = ASTSource(
        kernel,
        types,
        {(names.index(name),): value for name, value in constants.items()},
        {(names.index(name),): [["tt.divisibility", 16]] for name in ALIGNED if name in names},
    )
    options = {"num_warps": warps, **({"maxnreg": registers} if registers else {})}
    made = triton.compile(source, target=GPUTarget("cuda", target, 32), options=options)
    waits = [int(number) for number in re.findall(r"cp\.async\.wait_group\s+(\d+)", made.asm["ptx"])]
    return {
        "kernel": kernel.__name__,
        "sm": target,
        "shared": made.metadata.shared,
        "left_in_flight": max(waits, default=0),
    }


def main() -> None:
    found = []
    for target, shared in ((90, 232448), (100, 232448), (120, 101376)):
        chip = sizes.Chip(processors=132, shared=shared)
        decode, prefill = sizes.decode_config(chip), sizes.prefill_config(chip)
        shape = {"PAGES": decode.pages, "STAGES": decode.stages, "ROWS": 64}
        found.append(build(kernels.decode_logits_kernel, target, shape, decode.warps, None))
        tiles = {
            "PAGES": prefill.pages,
            "STAGES": prefill.stages,
            "STEP": prefill.step,
            "HELD": prefill.held,
            "ROWS": 64,
        }
        found.append(build(kernels.prefill_logits_kernel, target, tiles, prefill.warps, prefill.registers))
        for rows in (1, 8192):
            query = sizes.query_config(rows, chip.processors)
            blocks = {"ROPE": 64, "BLOCK": query.heads, "STAGES": query.stages}
            found.append(build(prepare.query_kernel, target, blocks, query.warps, None))
        plan = {"DECODE": True, "RATIO": 4, "ROPE": 64, "BLOCK": 16}
        found.append(build(prepare.store_keys_kernel, target, plan, 4, None))
        for row in found[-5:]:
            row["limit"] = shared
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
