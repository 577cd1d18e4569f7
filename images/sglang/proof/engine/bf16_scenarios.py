"""Index-K in bf16 in the real engine: answers, cache tiers, decode graphs, and a pair whose formats differ."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import compare
from compare import tokens
from scenarios import GUARD, LOADS, PROMPT, Arm, Ask, Result, _loadbacks, _with_marker
from servers import Answer, Pair, Server, single

BF16 = {"DSV4_INDEX_K_DTYPE": "bf16"}
PROMPTS = (tokens(41, 2900), tokens(42, 5000), tokens(43, 7900), PROMPT)
"""Longer than the reach of the sparse top-k (512 slots of 4 tokens), so that the indexer chooses."""


def _digest(answer: Answer) -> str:
    rows = [
        [[row[0], row[1]] for row in position] for position in answer["meta_info"]["output_top_logprobs"] if position
    ]
    return hashlib.sha256(json.dumps([answer["output_ids"], rows]).encode()).hexdigest()[:16]


def _same_prompts(ask: Ask) -> list[Answer]:
    return [ask(prompt, 8) for prompt in PROMPTS]


def _closeness(fp8: list[Answer], bf16: list[Answer]) -> Result:
    """How far answers to the same prompts are apart."""
    rows = []
    for one, other in zip(fp8, bf16, strict=True):
        if "error" in one or "error" in other:
            return {"error": [one if "error" in one else None, other if "error" in other else None]}
        rows.append(
            {
                "tokens": one["meta_info"].get("prompt_tokens"),
                "first_token": [one["output_ids"][0], other["output_ids"][0]],
                "equal_tokens": _common(one["output_ids"], other["output_ids"]),
                "first": compare.distance(one, other, 0),
                "bits": compare.same_bits(one, other),
            }
        )
    return {"rows": rows, "far": any(compare.damaged(*pair) for pair in zip(fp8, bf16, strict=True))}


def _common(one: list[int], other: list[int]) -> int:
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def _tiers(ask: Ask, rounds: int) -> Result:
    """The prompts cold, then one of them from device and from host, compared by bits."""
    answers = _same_prompts(ask)
    if any("error" in answer for answer in answers):
        return {"verdict": "error", "answer": answers}
    result = _loadbacks(ask, rounds)
    return {**result, "digests": [_digest(answer) for answer in answers], "answers": answers}


def single_server(port: int, logs: Path, rounds: int = 3) -> list[Arm]:
    """fp8 and bf16 side by side: tiers by bits within each, answers close between them."""
    kept: dict[str, list[Answer]] = {}
    arms = []
    for name, environ in (("fp8-single", {**GUARD, **LOADS}), ("bf16-single", {**GUARD, **LOADS, **BF16})):
        server = single(name, port, logs, environ)
        port += 200
        arms.append(Arm(name, [server], _with_marker(_single_check(name, server, kept, rounds), [server]), "right"))
    return arms


def _single_check(name: str, server: Server, kept: dict[str, list[Answer]], rounds: int) -> Callable[[], Result]:
    def run() -> Result:
        result = _tiers(server.generate, rounds)
        kept[name] = result.pop("answers", [])
        if name == "bf16-single" and kept.get("fp8-single") and kept[name]:
            result["against_fp8"] = _closeness(kept["fp8-single"], kept[name])
            if result["verdict"] == "right" and result["against_fp8"].get("far", True):
                result["verdict"] = "far"
            if all(row["bits"] for row in result["against_fp8"].get("rows", [])):
                result["verdict"] = "not bf16"  # another format cannot give the same bits everywhere
        return result

    return run


def pairs(port: int, logs: Path, rounds: int = 3) -> list[Arm]:
    """Prefill and decode, HiCache on prefill, decode eager and with CUDA graphs."""
    arms = []
    for name, graphs in (("bf16-pair", False), ("bf16-pair-graphs", True)):
        pair = Pair(name, port, logs, {**GUARD, **LOADS, **BF16}, {**GUARD, **BF16}, decode_graphs=graphs)
        port += 200
        arms.append(Arm(name, pair.servers, _with_marker(_pair_check(pair, rounds), pair.servers), "right"))
    return arms


def _pair_check(pair: Pair, rounds: int) -> Callable[[], Result]:
    def run() -> Result:
        result = _tiers(pair.answer, rounds)
        result.pop("answers", None)
        return result

    return run


def mismatch(port: int, logs: Path) -> list[Arm]:
    """fp8 on prefill, bf16 on decode: refused with the plugin's handshake, accepted without it."""
    arms = []
    for name, extra, expect in (
        ("mismatch-guard", {}, "refused"),
        ("mismatch-unchecked", {"DSV4_GUARD_SKIP": "handshake"}, "accepted"),
    ):
        pair = Pair(name, port, logs, {**GUARD, **extra}, {**GUARD, **BF16, **extra}, hicache=False)
        port += 200
        arms.append(Arm(name, pair.servers, _mismatch_check(pair), expect))
    return arms


def _mismatch_check(pair: Pair) -> Callable[[], Result]:
    def run() -> Result:
        begun = time.time()
        answer: Any = pair.answer(tokens(21, 3000), 4, timeout=45)
        lines = [
            line[:400]
            for server in pair.servers
            for line in server.text().splitlines()
            if "mismatch" in line.lower() or "index_k:" in line
        ]
        if "error" not in answer:
            return {"verdict": "accepted", "output_ids": answer["output_ids"], "lines": lines[:6]}
        verdict = "refused" if any("mismatch" in line.lower() for line in lines) else "failed"
        return {
            "verdict": verdict,
            "seconds_to_answer": round(time.time() - begun, 1),
            "answer_brief": str(answer)[:600],
            "decode_exit": pair.decodes[0].process.poll(),
            "lines": lines[:6],
        }

    return run


SCENARIOS: dict[str, Callable[[int, Path], list[Arm]]] = {
    "bf16-single": single_server,
    "bf16-pairs": pairs,
    "bf16-mismatch": mismatch,
}
