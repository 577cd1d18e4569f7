"""What the canary costs: tokens, processor time and memory of both sidecars of a pair, against what the pair can do.

    python tests/bench/canary_cost.py [--minutes 5] [--interval 30] [--prompt-tokens 2600] [--pair-tokens-per-second N]

A simulated pair serves; its two sidecars probe at the product's settings. Their tokens, processor time and memory are
real. What the *pair* could do instead is the simulator's own throughput, measured first with nobody else on it, which
says nothing about a GPU: give ``--pair-tokens-per-second`` for yours. Prompt and generated tokens count alike.

Not a test: nothing is asserted.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
for part in ("tests/e2e", "tests/cluster", "images/engine-sim/src", "operator"):
    sys.path.insert(0, str(ROOT / part))

from canary_lab import UserLoad, added, ready_code, samples, total  # noqa: E402
from local_pairs import ROLES, LocalPair, local_pairs, until  # noqa: E402
from world import engine_url, http_status  # noqa: E402


def capacity(pair: LocalPair, seconds: float) -> float:
    """Tokens per second that the pair serves to sixteen users of cold prompts."""
    prefill, decode = pair.pod("prefill"), pair.pod("decode")
    before = samples(decode, engine_url(decode))
    start = time.monotonic()
    with UserLoad([prefill], [decode], workers=16, prompts=10_000):
        time.sleep(seconds)
        taken = time.monotonic() - start
        after = samples(decode, engine_url(decode))
    after.subtract(before)
    return sum(total(after, f"sglang:{kind}_tokens_total") for kind in ("prompt", "generation")) / taken


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--interval", type=float, default=30, help="seconds between two probes of a sidecar")
    parser.add_argument("--prompt-tokens", type=int, default=2600)
    parser.add_argument("--pair-tokens-per-second", type=float, help="instead of the simulated pair's own")
    args = parser.parse_args()
    settings = {"intervalSeconds": args.interval, "promptTokens": args.prompt_tokens, "timeoutSeconds": 60}
    with tempfile.TemporaryDirectory() as folder, local_pairs(Path(folder), 1, settings=settings) as (pair,):
        pods = [pair.pod(role) for role in ROLES]
        until("engines", [pair], lambda: all(http_status(f"{engine_url(pod)}/health") == 200 for pod in pods))
        most = args.pair_tokens_per_second or capacity(pair, 15)
        pair.start_sidecars()
        until("sidecars", [pair], lambda: all(ready_code(pod) == 200 for pod in pods))
        names = [f"sidecar-{role}" for role in ROLES]
        used, before = [pair.cpu_seconds(name) for name in names], added(pods)
        start = time.monotonic()
        time.sleep(args.minutes * 60)
        minutes = (time.monotonic() - start) / 60
        found = added(pods)
        found.subtract(before)
        cpu = [(pair.cpu_seconds(name) - old) / (minutes * 60) for name, old in zip(names, used, strict=True)]
        memory = [pair.resident_bytes(name) / 2**20 for name in names]
    tokens = {kind: total(found, "dsv4_canary_tokens_total", kind=kind) / minutes for kind in ("prompt", "completion")}
    probes = total(found, "dsv4_canary_probes_total", outcome={"pass", "fail"}) / minutes
    share = sum(tokens.values()) / 60 / most
    whose = "given" if args.pair_tokens_per_second else "measured on the SIMULATED pair"
    print(f"interval {args.interval:g} s, prompts of {args.prompt_tokens} tokens, {minutes:.1f} minutes, both sidecars")
    print(f"  probes              {probes:9.1f} per minute")
    print(f"  prompt tokens       {tokens['prompt']:9.0f} per minute")
    print(f"  generated tokens    {tokens['completion']:9.0f} per minute")
    print(f"  pair's throughput   {most:9.0f} tokens per second ({whose})")
    print(f"  share of the pair   {100 * share:9.2f} %")
    for name, cores, size in zip(names, cpu, memory, strict=True):
        print(f"  {name:19} {1000 * cores:9.1f} thousandths of a core, {size:.1f} MiB resident")


if __name__ == "__main__":
    main()
