"""How the plugin ends a process: one line, non-zero."""

from __future__ import annotations

import logging
import os
import sys
from typing import NoReturn

from dsv4_guard import MARK

log = logging.getLogger(MARK)


class GuardError(Exception):
    """Something that the plugin promises cannot be had. The message names the target and what to do."""


def refuse(why: str) -> NoReturn:
    """End this process with one line on stderr and exit status 1.

    SystemExit, because SGLang catches Exception around plugins and goes on unpatched.
    """
    raise SystemExit(_line(why))


def end(why: str) -> NoReturn:
    """As `refuse`, at once: where threads run that a SystemExit would wait for.

    A prefill's bootstrap thread is no daemon and never ends, so a scheduler that is built would refuse and then hang,
    and the API process with it.
    """
    sys.stderr.write(_line(why) + "\n")
    sys.stderr.flush()
    os._exit(1)


def _line(why: str) -> str:
    return " ".join(f"{MARK}: refused: {why}".split())
