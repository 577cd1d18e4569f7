"""Quality of index-K formats: which slots the sparse top-k would select, bf16 against fp8 against fp4. Synthetic.

    python3 recall.py --out DIR [--device cpu|cuda] [--contexts 4096,...] [--queries N] [--seconds LIMIT]

Same keys and queries for every format. Both go through the engine's own steps in double precision (RMS norm, RoPE,
Hadamard) and are then rounded as the format rounds them:
  bf16  key and query in bf16
  fp8   e4m3, one fp32 scale per 128 values; query e4m3, its scale folded into the head weight
  fp4   e2m1, one power-of-two scale per 32 values; query likewise
Scores are sums over 64 heads of weight x max(0, q . k). The reference scores the unrounded values in double precision.

What is synthetic: the keys. `noise` draws them independent and normal, so nothing tells one slot from another and the
512th and 513th differ by next to nothing: the hardest case for any format. `topics` mixes 64 topics of uneven size and
channels of uneven scale, and each query looks for some of the topics: scores have a head and a tail, as attention has.
No checkpoint and no text is involved; the numbers rank the formats, they do not predict a model's answers.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

import torch

from dsv4_guard.bf16 import reference

HEADS, DIM, ROPE, TOP = 64, 128, 64, 512
Tensor = torch.Tensor
FP4_STEPS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def to_bf16(x: Tensor) -> Tensor:
    """Rounded to bf16."""
    return x.float().to(torch.bfloat16).float()


def to_fp8(x: Tensor) -> Tensor:
    """Rounded to e4m3 with one scale per last dimension, as the engine's fused kernels do."""
    x = x.float()
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448.0
    return (x / scale).to(torch.float8_e4m3fn).float() * scale


def to_fp4(x: Tensor) -> Tensor:
    """Rounded to e2m1 with a power-of-two scale per 32 values, rounded up, as the engine's fused kernels do."""
    blocks = x.float().unflatten(-1, (-1, 32))
    scale = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 6.0
    scale = torch.exp2(torch.ceil(torch.log2(scale)))
    scaled = blocks / scale
    index = torch.bucketize(scaled.abs().clamp(max=6.0), torch.tensor(FP4_STEPS, device=x.device))
    return (torch.tensor(FP4_VALUES, device=x.device)[index] * scaled.sign() * scale).flatten(-2)


FORMATS: dict[str, Callable[[Tensor], Tensor]] = {"bf16": to_bf16, "fp8": to_fp8, "fp4": to_fp4}


def raw(kind: str, slots: int, queries: int, make: torch.Generator, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """(keys [slots, 128] before norm, queries [queries, 64, 128] before RoPE, head weights [queries, 64]), fp64."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=make, device=device, dtype=torch.float64)

    weights = normal(queries, HEADS) * (HEADS * DIM) ** -0.5
    if kind == "noise":
        return normal(slots, DIM), normal(queries, HEADS, DIM), weights
    channels = torch.exp(0.8 * normal(DIM))
    topics = normal(64, DIM)
    share = torch.exp(1.2 * normal(64))
    which = torch.multinomial(share, slots, replacement=True, generator=make)
    keys = (topics[which] + 0.8 * normal(slots, DIM)) * channels
    wanted = torch.randint(0, 64, (queries, HEADS), generator=make, device=device)
    return keys, (0.7 * topics[wanted] + normal(queries, HEADS, DIM)) / channels.sqrt(), weights.abs()


def scores(keys: Tensor, queries: Tensor, weights: Tensor, step: int = 8192) -> Tensor:
    """[queries, slots]: sum over heads of weight x max(0, q . k), in the type of the operands."""
    parts = []
    flat = queries.reshape(-1, DIM)
    for part in keys.split(step):
        product = torch.relu(flat @ part.T).view(queries.shape[0], HEADS, -1)
        parts.append(torch.einsum("qh,qhs->qs", weights.to(product.dtype), product))
    return torch.cat(parts, 1)


def cell(kind: str, context: int, queries: int, device: str, seed: int) -> dict[str, Any]:
    """Recall of the best 512 slots, by format."""
    slots = context // 4
    make = torch.Generator(device=device).manual_seed(seed)
    key, query, weights = raw(kind, slots, queries, make, device)
    angle = torch.rand((slots, ROPE // 2), generator=make, device=device) * 6.2832
    freqs = torch.stack([angle.cos(), angle.sin()], -1).flatten(1)
    norm = torch.ones(DIM, device=device)
    key = reference.keys(key, norm, 1e-6, freqs, torch.arange(slots, device=device))
    query = reference.query(query, freqs, torch.full((queries,), slots - 1, device=device))
    exact = scores(key, query, weights)
    best = torch.zeros_like(exact, dtype=torch.bool).scatter_(1, exact.topk(TOP, 1).indices, True)
    ideal = (exact * best).sum(1)
    row: dict[str, Any] = {"keys": kind, "context": context, "slots": slots, "queries": queries}
    for name, rounded in FORMATS.items():
        got = scores(rounded(key), rounded(query), weights.float())
        chosen = got.topk(TOP, 1).indices
        hit = best.gather(1, chosen).double().mean(1)
        kept = exact.gather(1, chosen).sum(1) / ideal
        row[name] = {"recall": float(hit.mean()), "worst": float(hit.min()), "score_kept": float(kept.mean())}
    return row


def main() -> None:
    """Run the cells within the time given; later ones are named when left out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--contexts", default="4096,8192,16384,32768,65536,131072,262144")
    parser.add_argument("--queries", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    rows, left_out = [], []
    for context in map(int, args.contexts.split(",")):
        for kind in ("topics", "noise"):
            if time.monotonic() - begun > args.seconds:
                left_out.append(f"{kind} {context}")
                continue
            row = cell(kind, context, args.queries, args.device, args.seed)
            rows.append(row)
            facts = " ".join(f"{n} {row[n]['recall']:.4f} (worst {row[n]['worst']:.3f})" for n in FORMATS)
            sys.stdout.write(f"{kind:6} {context:8d} tokens: {facts}\n")
            sys.stdout.flush()
    result = {
        "command": " ".join(sys.argv),
        "device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
        "torch": torch.__version__,
        "top": TOP,
        "rows": rows,
        "left_out": left_out,
        "seconds": round(time.monotonic() - begun, 1),
    }
    (args.out / "recall.json").write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
