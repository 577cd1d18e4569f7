"""Does `dsv4ctl bisect` name a hidden fault? Simulated engines with one fault of five, planner and decider as they are.

Usage::

    PYTHONPATH=operator python images/engine-sim/tools/bisect_trials.py [--trials 5] [--fault NAME ...]

Every arm is a set of processes of its own: engines, and the real router before a pair. The fault belongs to the image
under suspicion; the safe image has none. The bisection sees settings and counts only. Rates are those of a simulator
whose windows are made wide.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import arms

from dsv4_operator.cli.bisect.execute import Bisection
from dsv4_operator.cli.bisect.factors import Factor, Setting
from dsv4_operator.cli.bisect.plan import Arm, Limits, make_plan
from dsv4_operator.cli.bisect.runner import ArmError, Load
from dsv4_operator.desired.soak_job import arguments

OPERATOR = Path(__file__).resolve().parents[3] / "operator"
BATCH_SECONDS = 300.0
SUSPECT, SAFE = "engine:suspect", "engine:good"
GIVEN = Setting(index_k="BF16", hicache=True, overlap=True, early_send=True, pair=True, image=SUSPECT)
LOAD = {
    "sessions": 24, "rounds": 3, "ctx": 200, "shared_ctx": 1900, "share": 6, "max_tokens": 600, "timeout": 60.0,
    "baseline": 0, "reask": 3, "give_up": 24,
}  # fmt: skip
WIDE = {
    "DSV4_SIM_HOST_BANDWIDTH_MBPS": "10",
    "DSV4_SIM_POOL_PAGES": "96",
    "DSV4_SIM_HOST_POOL_PAGES": "1024",
}
"""Slow loads and a small pool: much is reloaded, and a load takes long against a busy machine's jitter."""
DECODE = {"DSV4_SIM_POOL_PAGES": "1024"}


@dataclass(frozen=True)
class Fault:
    """A fault of the suspect image, and the words by which the bisection must name it."""

    switches: Mapping[str, Any]
    culprit: str
    given: Setting = GIVEN
    flags: tuple[str, ...] = ()
    load: Mapping[str, Any] = field(default_factory=dict)


FAULTS = {
    "no gate": Fault({"gate": "off"}, "index-K reads during HiCache loads"),
    "no early-send guard": Fault(
        {"early_send_guard": "off"}, "early send of prefixes that a HiCache load is still filling"
    ),
    "no early-send fence": Fault(
        {"early_send_fence": "off"},
        "early send without the fence of the running forward",
        given=Setting("BF16", hicache=False, overlap=True, early_send=True, pair=True, image=SUSPECT),
        flags=("--chunked-prefill-size", "1024"),
    ),
    "wedge in the overlapped loop": Fault(
        {"wedge": "overlap"}, "the overlapped scheduler stalls", load={"timeout": 5.0, "rounds": 1}
    ),
    "a kernel that loses stores": Fault({"bad_pod": "compute"}, "the image"),
}


class ProcessRunner:
    """Arms as processes of this machine."""

    def __init__(self, fault: Fault, folder: Path) -> None:
        self._fault = fault
        self._folder = folder

    @contextmanager
    def open(self, arm: Arm) -> Iterator[_Running]:
        """Start, serve, stop."""
        setting = arm.setting
        engines = arms.Engines(
            index_k=setting.index_k.lower(),
            hicache=setting.hicache,
            overlap=setting.overlap,
            early_send=setting.early_send,
            pair=setting.pair,
            flags=self._fault.flags,
            env=WIDE if setting.hicache else {},
            decode_env=DECODE,
            switches=self._fault.switches if setting.image == SUSPECT else {},
        )
        try:
            with arms.serving(engines) as up:
                yield _Running(up.url, self._folder)
        except RuntimeError as error:
            raise ArmError(str(error)) from None


class _Running:
    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._folder = folder

    def soak(self, load: Load) -> dict[str, Any]:
        """One batch by the product's harness."""
        values = {"endpoint": self._url, "tag": load.tag, "model": arms.MODEL, **load.values}
        command = [sys.executable, "-m", "dsv4_canary.soak", "run", *arguments(values)]
        command += ["--out", str(self._folder / "soaks"), "--quiet"]
        done = subprocess.run(
            command, env=os.environ | {"PYTHONPATH": str(OPERATOR)}, capture_output=True, text=True, check=False,
            timeout=BATCH_SECONDS,
        )  # fmt: skip
        path = self._folder / "soaks" / f"{load.tag}.json"
        if not path.exists():
            raise ArmError(f"exit status {done.returncode}: {done.stderr[-500:]}")
        report: dict[str, Any] = json.loads(path.read_text())
        return report


def trial(
    fault: Fault,
    folder: Path,
    seed: int,
    *,
    factors: Sequence[Factor] = tuple(Factor),
    recheck: bool = True,
    verbose: bool = False,
) -> dict[str, Any]:
    """One bisection of a hidden fault; returns its report."""
    load = {**LOAD, **fault.load}
    limits = Limits(sessions=load["sessions"], batches=3, recheck=recheck)
    plan = make_plan(fault.given, limits, safe_image=SAFE, factors=factors)
    say = (lambda line: print(f"    {line}", file=sys.stderr)) if verbose else (lambda _line: None)
    return Bisection(plan, ProcessRunner(fault, folder), folder, load=load, seed=seed, say=say).run()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--fault", action="append", help="part of a fault's name; several may be given")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    wrong = 0
    print("| hidden fault | trial | named | given | batches | seconds |\n|---|---|---|---|---|---|", flush=True)
    for name, fault in FAULTS.items():
        if args.fault and not any(part in name for part in args.fault):
            continue
        for number in range(args.trials):
            start = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                report = trial(fault, Path(folder), args.seed + 100 * number, verbose=args.verbose)
            right = report["culprit"] == fault.culprit
            wrong += not right
            given = report["arms"][0]["sessions"]
            batches = sum(len(row["batches"]) for row in report["arms"])
            print(
                f"| {name} | {number + 1} | {'yes' if right else 'NO'}: {report['culprit']} | {given['events']} of "
                f"{given['trials']} | {batches} | {time.monotonic() - start:.0f} |",
                flush=True,
            )
            if args.verbose or not right:
                print(report["sentence"], [(row["name"], row["why"]) for row in report["arms"]], file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
