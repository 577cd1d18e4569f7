"""The progress line: counts, a terminal redrawn in place, plain lines elsewhere."""

from __future__ import annotations

import asyncio
import io
import re

from dsv4_canary.model import Severity
from dsv4_canary.soak.progress import Progress, progress_line, short_line
from dsv4_canary.soak.record import Failure, Phase, Record
from dsv4_canary.soak.tally import Tally


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def record(session: int, number: int, **more: object) -> Record:
    base = {"phase": Phase.LOAD, "group": "g", "stream": False, "tool": "t", "at": 0.0, "seconds": 1.0}
    return Record(session=session, round=number, **(base | more))  # type: ignore[arg-type]


def filled() -> tuple[Tally, Clock]:
    clock = Clock()
    tally = Tally(clock)
    tally.begin(Phase.LOAD, {0: 2, 1: 2, 2: 2})
    tally.add(record(0, 1, completion_tokens=900), live=False)
    clock.now += 10
    tally.add(record(0, 2, completion_tokens=100, signatures={"S9": Severity.CONTRACT}))
    tally.add(record(1, 1, failure=Failure.TIMEOUT))
    tally.add(record(2, 1, failure=Failure.CUT))
    tally.running = 2
    return tally, clock


def test_the_line_has_all_counts() -> None:
    tally, clock = filled()
    assert re.split(" {2,}", progress_line(tally)) == [
        "load",
        "sessions 1/3",
        "replies 4/6",
        "in flight 2",
        "corrupted 1 in 1 sessions",
        "timeouts 1",
        "other failures 1",
        "10 tokens/s",
        "10 s",
    ]
    clock.now += 100
    assert tally.tokens_per_second == 0  # only the last seconds count
    tally.begin(Phase.REASK, {0: 1})
    assert (tally.replies, tally.finished_sessions, tally.timeouts, len(tally.corrupted_sessions)) == (0, 0, 0, 0)


def test_the_short_line_fits_80_columns() -> None:
    tally = Tally(Clock())
    tally.begin(Phase.BASELINE, dict.fromkeys(range(999), 9))
    assert len(short_line(tally)) < 90
    tally.begin(Phase.LOAD, dict.fromkeys(range(80), 4))
    assert len(short_line(tally)) < 80


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def shown(out: io.StringIO, *, quiet: bool = False) -> str:
    tally, _ = filled()
    progress = Progress(tally, out, quiet=quiet)
    task = asyncio.create_task(progress.show())
    await asyncio.sleep(0)
    progress.end_phase()
    tally.begin(Phase.REASK, {0: 1})
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    progress.close()
    return out.getvalue()


async def test_plain_lines_without_a_terminal() -> None:
    text = await shown(io.StringIO())
    assert [line.split()[0] for line in text.splitlines()] == ["load", "reask"]
    assert "\x1b" not in text
    assert "\r" not in text


async def test_a_terminal_is_redrawn_and_each_phase_keeps_its_line() -> None:
    text = await shown(Terminal())
    assert text.startswith("\rload")
    # What stands on the screen at the end of each line is the last state of its phase.
    standing = [line.rpartition("\r")[2].split()[0] for line in text.split("\n")[:-1]]
    assert standing == ["load", "reask"]
    assert text.endswith("\x1b[K\n")


async def test_quiet_says_nothing() -> None:
    assert await shown(io.StringIO(), quiet=True) == ""


class Gone(io.StringIO):
    """A stderr whose reader has ended."""

    def write(self, _text: str) -> int:
        raise BrokenPipeError

    def flush(self) -> None:
        raise BrokenPipeError


async def test_a_reader_that_has_gone_costs_no_report() -> None:
    tally, _ = filled()
    progress = Progress(tally, Gone())
    progress.end_phase()
    progress.close()
