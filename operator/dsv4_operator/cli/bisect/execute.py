"""Runs a bisection: asks the decider, has the runner do it, keeps every result on disk."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from dsv4_operator.cli.bisect import report as reports
from dsv4_operator.cli.bisect.decide import ArmResult, Conclusion, Run, conclude, next_step
from dsv4_operator.cli.bisect.outcome import batch_from_json, batch_of
from dsv4_operator.cli.bisect.plan import Plan
from dsv4_operator.cli.bisect.runner import ArmError, Load, Runner, RunningArm
from dsv4_operator.cli.errors import UnreadableError

_STATE: Final = "state.json"
_VERSION: Final = 1


class Bisection:
    """One bisection in one folder. `load`: options of the soak that all arms share."""

    def __init__(
        self,
        plan: Plan,
        runner: Runner,
        folder: Path,
        *,
        load: dict[str, Any],
        seed: int,
        say: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self.plan = plan
        self.results: dict[str, ArmResult] = {}
        self.seed = seed
        self._runner = runner
        self._folder = folder
        self._load = load
        self._say = say

    def resume(self) -> None:
        """Take over what the folder holds. Raises UnreadableError when that is of another plan, or broken."""
        path = self._folder / _STATE
        if not path.exists():
            return
        try:
            state = json.loads(path.read_bytes())
            held, seed = state["plan"], int(state["seed"])
            results = {
                name: ArmResult(tuple(map(batch_from_json, item["batches"])), item["failed"])
                for name, item in state["results"].items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnreadableError(f"{path}: cannot be used ({error}); choose another --out") from None
        if held != self._identity():
            raise UnreadableError(f"{path}: is of another object or other options; give the same, or another --out")
        self.seed, self.results = seed, results

    def run(self) -> dict[str, Any]:
        """Run to the conclusion and return the report. On Ctrl-C the arm is torn down and the report says so.

        Raises UnreadableError when the folder cannot be written.
        """
        self._save()
        interrupted = False
        try:
            found = self._work()
        except KeyboardInterrupt:
            found, interrupted = conclude(self.plan, self.results), True
        report = reports.build(self.plan, self.results, found, seed=self.seed, interrupted=interrupted)
        self._write("bisect.json", json.dumps(report, ensure_ascii=False, indent=2) + "\n")
        self._write("bisect.md", reports.markdown(report))
        return report

    def _work(self) -> Conclusion:
        with contextlib.ExitStack() as stack:
            open_name: str | None = None
            running: RunningArm | None = None
            while isinstance(step := next_step(self.plan, self.results), Run):
                name = step.arm.name
                try:
                    if name != open_name or running is None:
                        stack.close()  # before the next one starts: they need the same GPUs
                        open_name, running = name, None
                        self._say(f"{name}: starting")
                        running = stack.enter_context(self._runner.open(step.arm))
                    self._batch(name, running)
                except ArmError as error:
                    self._say(f"{name}: {error}")
                    old = self.results.get(name, ArmResult())
                    self.results[name] = ArmResult(old.batches, str(error))
                self._save()
            return step

    def _batch(self, name: str, running: RunningArm) -> None:
        old = self.results.get(name, ArmResult())
        number = len(old.batches) + 1
        # The same requests for every arm; a new seed for every batch, whose prefixes are then cold.
        load = Load(f"{name}-{number}", {**self._load, "seed": self.seed + number - 1})
        self._say(f"{name}: batch {number} of at most {self.plan.limits.batches}")
        report = running.soak(load)
        batch = batch_of(report)
        self._say(
            f"{name}: {batch.corrupted} of {batch.sessions} sessions corrupted, {batch.wrong} with a wrong reply, "
            f"{batch.silent} of {batch.attempted} without one"
        )
        self._write(f"{name}-{number}.json", json.dumps(report, ensure_ascii=False, indent=2) + "\n")
        self.results[name] = ArmResult((*old.batches, batch))

    def _identity(self) -> dict[str, Any]:
        """What must be the same for a resumed run. Bounds may change."""
        settings = {arm.name: asdict(arm.setting) for arm in (self.plan.given, *self.plan.singles)}
        return {
            "version": _VERSION,
            "arms": settings,
            "load": self._load,
            "sessions": self.plan.limits.sessions,
            "batches": self.plan.limits.batches,
        }

    def _save(self) -> None:
        results = {
            name: {"batches": [batch.to_json() for batch in item.batches], "failed": item.failed}
            for name, item in self.results.items()
        }
        state = {"plan": self._identity(), "seed": self.seed, "results": results}
        self._write(_STATE, json.dumps(state, indent=1) + "\n")

    def _write(self, name: str, content: str) -> None:
        path = self._folder / name
        part = path.with_name(f".{name}.part")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            part.write_text(content, encoding="utf-8", errors="backslashreplace")
            part.replace(path)
        except OSError as error:
            raise UnreadableError(f"{path}: cannot be written ({error.strerror}); choose another --out") from None
