"""The scenarios. Each is a set of arms whose servers start together and are then tested one after another."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import compare
from compare import tokens
from servers import Answer, Pair, Server, single

Result = dict[str, Any]
GUARD = {"SGLANG_PLUGINS": "dsv4_lab,dsv4_guard"}
STOCK = {"SGLANG_PLUGINS": "dsv4_lab"}
EARLY_OFF = {"SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX": "0"}
"""What the operator renders on prefill."""
LOADS = {"DSV4_LAB_LOAD_DELAY": "40000000"}
DIGEST = {"DSV4_GUARD_INDEX_DIGEST": "1"}
SLOW_LOADS = {"DSV4_LAB_LOAD_DELAY": "80000000"}
PROMPT = tokens(7, 6000)
Ask = Callable[[list[int], int], Answer]
ANY = "any"
"""Expected of an arm that measures and judges nothing."""


@dataclass
class Arm:
    """Servers and what is asked of them."""

    name: str
    servers: list[Server]
    check: Callable[[], Result]
    expect: str
    """What should come out, in a word that the check's "verdict" equals."""


def _evict(ask: Ask) -> None:
    for number in range(5):
        ask(tokens(100 + number, 7900), 1)


def _loadbacks(ask: Ask, rounds: int) -> Result:
    """One prompt cold, from the device, and `rounds` times from host after eviction, compared by bits."""
    ask(tokens(1, 40), 4)
    cold, hit, again = ask(PROMPT, 8), ask(PROMPT, 8), ask(PROMPT, 8)
    seen: Result = {"rounds": []}
    for answer in (cold, hit, again):
        if "error" in answer:
            return {"verdict": "error", "answer": answer}
    seen["cold_equals_hit"] = compare.same_bits(cold, hit)
    seen["hit_equals_hit"] = compare.same_bits(hit, again)
    for _ in range(rounds):
        _evict(ask)
        back = ask(PROMPT, 8)
        if "error" in back:
            return {"verdict": "error", "answer": back}
        details = back.get("cached", back["meta_info"])
        seen["rounds"].append(
            {
                "bits": compare.same_bits(hit, back),
                "first_token": [hit["output_ids"][0], back["output_ids"][0]],
                "distance": compare.distance(hit, back, 0),
                "cached": details.get("cached_tokens_details") or details.get("details"),
            }
        )
    seen["later_hit_equals_hit"] = compare.same_bits(hit, ask(PROMPT, 8))
    wrong = sum(not entry["bits"] for entry in seen["rounds"])
    return {"verdict": "right" if wrong == 0 else "wrong", "wrong": wrong, "of": rounds, **seen}


def _with_marker(check: Callable[[], Result], servers: list[Server]) -> Callable[[], Result]:
    def run() -> Result:
        result = check()
        result["marker"] = {server.name: server.marker() for server in servers}
        return result

    return run


def gates(port: int, logs: Path, rounds: int = 3) -> list[Arm]:
    """(a) Gates of index-K and indexer states removed underneath: without the plugin wrong, with it right."""
    arms = []
    for name, environ, expect in (
        ("gates-stock", {**STOCK, **LOADS}, "right"),
        ("gates-removed", {**STOCK, **LOADS, "DSV4_LAB_UNGATE": "indexer"}, "wrong"),
        ("gates-removed-guard", {**GUARD, **LOADS, "DSV4_LAB_UNGATE": "indexer"}, "right"),
    ):
        server = single(name, port, logs, environ)
        port += 200
        arms.append(Arm(name, [server], _with_marker(_bound(_loadbacks, server.generate, rounds), [server]), expect))
    return arms


def _bound(function: Callable[..., Result], *arguments: Any) -> Callable[[], Result]:
    return lambda: function(*arguments)


def gates_pair(port: int, logs: Path, rounds: int = 3) -> list[Arm]:
    """(a) The plugin in a real pair as shipped: load-backs bit-identical."""
    pair = Pair("pair-guard", port, logs, {**GUARD, **LOADS}, GUARD)
    return [
        Arm(
            "pair-guard",
            pair.servers,
            _with_marker(_bound(_loadbacks, pair.answer, rounds), pair.servers),
            "right",
        )
    ]


def _race(pair: Pair, rounds: int, requests: int = 4) -> Result:
    """Requests that share a prefix which was evicted, sent so that loader and sharers form one batch.

    Two load-backs go in front and keep the scheduler busy meanwhile.
    """
    prompts = [PROMPT[:5888] + tokens(500 + number, 112) for number in range(requests)]
    pair.answer(prompts[0], 1)
    references = [pair.answer(prompt, 8) for prompt in prompts]
    if any("error" in answer for answer in references):
        return {"verdict": "error", "answer": references}
    blockers = [tokens(900 + number, 6000) for number in range(2)]
    for blocker in blockers:
        pair.answer(blocker, 1)

    def together() -> list[Answer]:
        answers: list[Answer] = [{"error": "no answer"}] * requests

        def one(number: int) -> None:
            answers[number] = pair.answer(prompts[number], 8)

        threads = []
        for blocker in blockers:
            threads.append(threading.Thread(target=pair.answer, args=(blocker, 1)))
            threads[-1].start()
            time.sleep(0.06)
        group = [threading.Thread(target=one, args=(number,)) for number in range(requests)]
        for thread in group:
            thread.start()
        for thread in [*group, *threads]:
            thread.join()
        return answers

    together()
    wrong_rounds, seen = 0, []
    for _ in range(rounds):
        _evict(pair.answer)
        answers = together()
        entry = [_judge(reference, answer) for reference, answer in zip(references, answers, strict=True)]
        wrong_rounds += any(item["wrong"] for item in entry)
        seen.append(entry)
    errors = sum(item["error"] is not None for entry in seen for item in entry)
    wrong = sum(item["wrong"] and item["error"] is None for entry in seen for item in entry)
    refused = sum("digest mismatch" in (item["error"] or "") for entry in seen for item in entry)
    verdict = "right" if wrong_rounds == 0 else "wrong" if wrong else "refused" if refused == errors else "error"
    return {
        "verdict": verdict,
        "wrong_rounds": wrong_rounds,
        "of": rounds,
        "wrong_requests": wrong,
        "errors": errors,
        "refused": refused,
        "requests": rounds * requests,
        "rounds": seen,
    }


def _judge(reference: Answer, answer: Answer) -> Result:
    if "error" in answer:
        return {"wrong": True, "error": str(answer)[:900]}
    return {
        "wrong": compare.damaged(reference, answer),
        "error": None,
        "distances": [compare.distance(reference, answer, position) for position in (0, 1)],
        "cached": answer["cached"]["details"],
    }


def race2(port: int, logs: Path, rounds: int = 8) -> list[Arm]:
    """(b) Early send of pages that are being loaded: upstream's default, what the operator renders, the plugin."""
    arms = []
    for name, environ, expect in (
        ("race2-default", {**STOCK, **SLOW_LOADS}, "wrong"),
        ("race2-early-off", {**STOCK, **SLOW_LOADS, **EARLY_OFF}, "right"),
        ("race2-guard", {**GUARD, **SLOW_LOADS}, "right"),
    ):
        pair = Pair(name, port, logs, environ)
        port += 200
        arms.append(Arm(name, pair.servers, _with_marker(_bound(_race, pair, rounds), pair.servers), expect))
    return arms


def race_delays(port: int, logs: Path, rounds: int = 8) -> list[Arm]:
    """(b) The race of race2-default with shorter loads, down to none added: how wide the window has to be."""
    arms = []
    for cycles in (0, 1_000_000, 5_000_000, 20_000_000):
        pair = Pair(f"race-delay-{cycles}", port, logs, {**STOCK, "DSV4_LAB_LOAD_DELAY": str(cycles)})
        port += 200
        arms.append(Arm(pair.name, pair.servers, _bound(_race, pair, rounds), ANY))
    return arms


def _chunks(pair: Pair, rounds: int) -> Result:
    """New prompts of several chunks, cold, then from the device cache: refused where a digest found damage.

    The distance between the two answers is kept, but judges nothing: sound ones, cold in chunks and from the device,
    were up to 1.1 nats apart.
    """
    pair.answer(tokens(1, 40), 4)
    seen = []
    for number in range(rounds):
        prompt = tokens(3000 + number, 6000)
        cold, hit = (pair.answer(prompt, 8, prefill_logprobs=False) for _ in range(2))
        refused = [str(answer) for answer in (cold, hit) if "error" in answer and "digest mismatch" in str(answer)]
        if refused:
            seen.append({"refused": [text[:300] for text in refused]})
            continue
        if "error" in cold or "error" in hit:
            return {"verdict": "error", "answer": [cold, hit]}
        seen.append(
            {
                "tokens": [hit["output_ids"], cold["output_ids"]],
                "distances": [compare.distance(hit, cold, position) for position in (1, 2)],
            }
        )
    refused_rounds = sum("refused" in entry for entry in seen)
    verdict = "refused" if refused_rounds else "right"
    return {"verdict": verdict, "refused": refused_rounds, "of": rounds, "rounds": seen}


def fence(port: int, logs: Path, rounds: int = 8) -> list[Arm]:
    """(c) The forward's fence on NIXL, judged by index digests: do pages arrive as the forward left them?

    0.5.17 itself waits for the whole forward, which hides the hole; three arms replace that by 0.5.23's default, an
    early event, underneath. HiCache off. Prefill returns no logprobs, for which its host would wait in every chunk.
    """
    slow = {**GUARD, **DIGEST, "DSV4_LAB_FORWARD_DELAY": "600000000"}
    exposed = {**slow, "DSV4_LAB_EARLY_BARRIER": "1"}
    unfenced = {"DSV4_GUARD_SKIP": "fence"}
    arms = []
    for name, environ, expect in (
        ("fence-shipped", {**slow, **unfenced}, "right"),
        ("fence-early-event", {**exposed, **unfenced}, "refused"),
        ("fence-early-event-early-off", {**exposed, **unfenced, **EARLY_OFF}, "right"),
        ("fence-early-event-guard", exposed, "right"),
    ):
        plugins = {name: value for name, value in environ.items() if not name.startswith("DSV4_LAB")}
        pair = Pair(name, port, logs, environ, plugins, hicache=False, chunk=2048)
        port += 200
        arms.append(Arm(name, pair.servers, _with_marker(_bound(_chunks, pair, rounds), pair.servers), expect))
    return arms


def digest(port: int, logs: Path, rounds: int = 8) -> list[Arm]:
    """(e) Sampled digests of index-K: all verified with the plugin whole; damage refused with early send unguarded."""
    arms = []
    environ = {**GUARD, **SLOW_LOADS, **DIGEST}
    for name, more, expect in (
        ("digest-whole", {}, "right"),
        ("digest-early-send-unguarded", {"DSV4_GUARD_SKIP": "early_send"}, "refused"),
    ):
        pair = Pair(name, port, logs, {**environ, **more})
        port += 200
        arms.append(Arm(name, pair.servers, _with_marker(_bound(_race, pair, rounds), pair.servers), expect))
    return arms


def _stopped_peer(pair: Pair, patience: float) -> Result:
    """Stop one decode between its handshake and the transfer, and see what becomes of it and of the others."""
    short = tokens(11, 3000)
    for decode in (0, 1):
        warm = pair.answer(short, 4, decode)
        if "error" in warm:
            return {"verdict": "error", "answer": warm}
    cold = pair.answer(tokens(12, 3000), 4, 1)
    reference = pair.answer(tokens(12, 3000), 4, 1)  # from the device, as the one that is judged
    if "error" in cold or "error" in reference:
        return {"verdict": "error", "answer": cold if "error" in cold else reference}
    extra: Answer = pair.room()
    victim = pair.decodes[0]
    done: Result = {}
    begun = time.time()

    def half(name: str, server: Server) -> None:
        done[name] = server.generate(tokens(13, 6000), 4, extra, patience + 60)
        done[f"{name}_seconds"] = round(time.time() - begun, 2)

    ask_decode = threading.Thread(target=half, args=("decode", victim))
    ask_decode.start()
    time.sleep(1.5)  # decode has sent its addresses by now; prefill has not been asked yet
    victim.signal(signal.SIGSTOP)
    begun = time.time()
    ask_prefill = threading.Thread(target=half, args=("prefill", pair.prefill))
    ask_prefill.start()
    time.sleep(0.5)
    other = time.time()
    answer = pair.answer(tokens(12, 3000), 4, 1, timeout=patience)
    other_seconds = round(time.time() - other, 2)
    ask_prefill.join(max(0.1, patience - (time.time() - begun)))
    prefill_ended = "prefill" in done
    victim.signal(signal.SIGCONT)
    resumed = time.time()
    ask_decode.join(25)
    seen = {
        "prefill_ended": prefill_ended,
        "prefill": _brief(done.get("prefill")),
        "prefill_seconds": done.get("prefill_seconds"),
        "other": "error" if "error" in answer else "differs" if compare.damaged(reference, answer) else "right",
        "other_answer": answer if "error" in answer else None,
        "other_distances": None if "error" in answer else [compare.distance(reference, answer, at) for at in (0, 1)],
        "cold_distances": [compare.distance(cold, reference, at) for at in (0, 1)],
        "other_seconds": other_seconds,
        "decode_after_resume": _brief(done.get("decode")),
        "decode_after_resume_seconds": round(time.time() - resumed, 2) if "decode" in done else None,
    }
    failed = prefill_ended and "error" in done["prefill"]
    if failed:
        later = pair.answer(short, 4, 0, timeout=30)
        seen["same_decode_later"] = "error" if "error" in later else "answers"
        seen["later"] = later if "error" in later else None
    told = "decode" in done and "error" in done["decode"]
    served = seen["other"] != "error"
    verdict = "bounded" if failed and told and served else "completed" if prefill_ended and not failed else "stuck"
    return {"verdict": verdict, **seen}


def _brief(answer: Answer | None) -> Any:
    if answer is None:
        return None
    return answer if "error" in answer else {"output_ids": answer.get("output_ids")}


def bounded(port: int, logs: Path, name: str = "bounded", transports: str = "tcp,cuda_copy,self") -> list[Arm]:
    """(c) A peer stopped by SIGSTOP in mid-transfer: prefill ends it in time and goes on serving others.

    One transfer worker, so that every room shares it. TCP, because a write over CUDA IPC needs nothing of its target.
    """
    arms = []
    limits = {"DSV4_GUARD_TRANSFER_DEADLINE_SECONDS": "8"}
    for variant, plugins, expect in (("guard", {**GUARD, **limits}, "bounded"), ("stock", STOCK, "stuck")):
        environ = {**plugins, "SGLANG_DISAGGREGATION_QUEUE_SIZE": "1", "UCX_TLS": transports}
        pair = Pair(f"{name}-{variant}", port, logs, environ, hicache=False, decodes=2)
        port += 200
        arms.append(Arm(pair.name, pair.servers, _with_marker(_bound(_stopped_peer, pair, 25.0), pair.servers), expect))
    return arms


def _only(make: Callable[[int, Path], list[Arm]], *names: str) -> Callable[[int, Path], list[Arm]]:
    """The named arms of a scenario."""
    return lambda port, logs: [arm for arm in make(port, logs) if arm.name in names]


SCENARIOS: dict[str, Callable[[int, Path], list[Arm]]] = {
    "gates": gates,
    "gates-pair": gates_pair,
    "race2": race2,
    "race-delays": race_delays,
    "fence": fence,
    "digest": digest,
    "digest-race": _only(digest, "digest-early-send-unguarded"),
    "bounded": bounded,
    "bounded-ipc": lambda port, logs: bounded(port, logs, "bounded-ipc", "cuda_ipc,cuda_copy,cma,tcp,self"),
}
