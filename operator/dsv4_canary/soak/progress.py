"""Progress for people: one line that redraws itself on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from typing import TextIO

from dsv4_canary.soak.record import Verdict
from dsv4_canary.soak.tally import Tally

_LIVE_SECONDS = 0.5
_PLAIN_SECONDS = 10.0


def progress_line(tally: Tally) -> str:
    """The counts in one line."""
    other = sum(tally.failures.values()) - tally.timeouts
    parts = [
        f"{tally.phase.value:8}",
        f"sessions {tally.finished_sessions}/{tally.planned_sessions}",
        f"replies {tally.replies}/{tally.planned_replies}",
        f"in flight {tally.running}",
        f"corrupted {tally.verdicts[Verdict.CORRUPTED]} in {len(tally.corrupted_sessions)} sessions",
        f"timeouts {tally.timeouts}",
        f"other failures {other}",
        f"{tally.tokens_per_second:.0f} tokens/s",
        f"{tally.seconds:.0f} s",
    ]
    return "  ".join(parts)


def short_line(tally: Tally) -> str:
    """The same for a terminal of 80 columns."""
    failed = sum(tally.failures.values()) - tally.timeouts
    return (
        f"{tally.phase.value} {tally.finished_sessions}/{tally.planned_sessions} sessions "
        f"{tally.replies}/{tally.planned_replies} replies {tally.verdicts[Verdict.CORRUPTED]} corrupted "
        f"{tally.timeouts} timeouts {failed} failed {tally.tokens_per_second:.0f} tok/s"
    )


class Progress:
    """Shows a tally until closed."""

    def __init__(self, tally: Tally, out: TextIO, *, quiet: bool = False) -> None:
        self._tally = tally
        self._out = out
        self._quiet = quiet
        self._live = not quiet and out.isatty()
        self._last = ""

    def end_phase(self) -> None:
        """Leave the last state of the phase standing. Called before the next one begins."""
        if not self._quiet and self._tally.planned_replies:
            self._write()
            if self._live:
                self._put("\n")
            self._last = ""

    async def show(self) -> None:
        """Redraw until cancelled."""
        while not self._quiet:
            if self._live:
                self._write()
            await asyncio.sleep(_LIVE_SECONDS if self._live else _PLAIN_SECONDS)
            if not self._live:
                self._write()

    def close(self) -> None:
        """Write the last state."""
        self.end_phase()
        self._put("")

    def _write(self) -> None:
        line = progress_line(self._tally)
        if not self._live:
            if line != self._last:
                self._put(line + "\n")
            self._last = line
            return
        room = max(20, shutil.get_terminal_size().columns - 1)
        self._last = line if len(line) <= room else short_line(self._tally)[:room]
        # Return, text, clear to the end: no flicker, and nothing is left of a longer line.
        self._put(f"\r{self._last}\x1b[K")

    def _put(self, text: str) -> None:
        """Write. A reader that has gone (`| tee` that Ctrl-C ended, a closed terminal) must not cost the reports."""
        with contextlib.suppress(OSError, ValueError):
            self._out.write(text)
            self._out.flush()
