"""The bisection of the incident at full scale, by the product's own soak: simulated engines, the real router.

Usage::

    python images/engine-sim/tools/five_arms.py [--sessions 80] [--arm NAME ...] [--out DIR]

80 sessions of 4 rounds, 300 words of new context each, at most 2,500 tokens and 180 s a reply. Every arm starts its own
engines with cold caches and gets the same requests. All counts are of a simulator: corruption is the result of reads
that overtake loads, the rates are those of the bandwidth and delays chosen here, and say nothing about a real engine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import arms

OPERATOR = Path(__file__).resolve().parents[3] / "operator"
BASE = arms.Engines(
    # Calibrated, so that the first and the third arm come near the incident's 18 and 2 %.
    env={"DSV4_SIM_HOST_POOL_PAGES": "2048", "DSV4_SIM_HOST_BANDWIDTH_MBPS": "22"},
    decode_env={"DSV4_SIM_POOL_PAGES": "1024"},
    switches={"gate": "off"},
)


@dataclass(frozen=True)
class Arm:
    """One line of the table."""

    name: str
    engines: arms.Engines
    incident: str


ARMS = (
    Arm("bf16, HiCache, PD, gate off", BASE, "18 %"),
    Arm("fp8, HiCache, PD, gate off", replace(BASE, index_k="fp8"), "0 %"),
    Arm("bf16, HiCache, one server, gate off", replace(BASE, pair=False), "about 2 %"),
    Arm("bf16, no HiCache, PD, gate off", replace(BASE, hicache=False), "0 %"),
    Arm("bf16, HiCache, PD, gate on", replace(BASE, switches={"gate": "on"}), "-"),
)


def run(arm: Arm, tag: str, folder: Path, sessions: int, seed: int) -> dict[str, Any]:
    """Start the arm, soak it, stop it; the report of the soak."""
    with arms.serving(arm.engines) as up:
        command = [sys.executable, "-m", "dsv4_canary.soak", "run", "--endpoint", up.url, "--tag", tag]
        command += ["--model", arms.MODEL, "--sessions", str(sessions), "--rounds", "4", "--ctx", "300"]
        command += ["--max-tokens", "2500", "--timeout", "180", "--seed", str(seed), "--out", str(folder), "--quiet"]
        environ = os.environ | {"PYTHONPATH": str(OPERATOR)}
        done = subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, check=False)
    path = folder / f"{tag}.json"
    if not path.exists():
        raise SystemExit(f"{arm.name}: no report, exit status {done.returncode}")
    report: dict[str, Any] = json.loads(path.read_text())
    return report


def rate(found: dict[str, Any]) -> str:
    """``14 of 80, 17.5 % (10.7 to 27.3)``."""
    share = 100 * found["share"] if found["trials"] else 0.0
    interval = f"{100 * found['low']:.1f} to {100 * found['high']:.1f}"
    return f"{found['events']} of {found['trials']}, {share:.1f} % ({interval})"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sessions", type=int, default=80)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--arm", action="append", help="part of an arm's name; several may be given")
    parser.add_argument("--out", type=Path, help="keep the reports here")
    args = parser.parse_args()
    start = time.monotonic()
    print("| arm (simulated) | corrupted sessions, 95 % interval | corrupted replies: cold | cached | not answered "
          "| incident | seconds |\n|---|---|---|---|---|---|---|", flush=True)  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = args.out or Path(name)
        for number, arm in enumerate(ARMS, 1):
            if args.arm and not any(part in arm.name for part in args.arm):
                continue
            began = time.monotonic()
            load = run(arm, f"arm-{number}", folder, args.sessions, args.seed)["phases"]["load"]
            cold, cached = (load["byCache"].get(kind, {"events": 0, "trials": 0}) for kind in ("cold", "cached"))
            print(
                f"| {arm.name} | {rate(load['corruptedSessions'])} | {cold['events']}/{cold['trials']} "
                f"| {cached['events']}/{cached['trials']} | {load['failedReplies']['events']} | {arm.incident} "
                f"| {time.monotonic() - began:.0f} |",
                flush=True,
            )
    print(f"\nAll arms: {time.monotonic() - start:.0f} s.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
