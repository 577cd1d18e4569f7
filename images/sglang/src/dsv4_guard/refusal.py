"""How the plugin ends a process: one line, non-zero."""

from __future__ import annotations

import logging
from typing import NoReturn

from dsv4_guard import MARK

log = logging.getLogger(MARK)


class GuardError(Exception):
    """Something that the plugin promises cannot be had. The message names the target and what to do."""


def refuse(why: str) -> NoReturn:
    """End this process with one line on stderr and exit status 1.

    SystemExit, because SGLang catches Exception around plugins and goes on unpatched.
    """
    line = " ".join(f"{MARK}: refused: {why}".split())
    raise SystemExit(line)
