"""Progress for people, on stderr: one line per event, with the seconds since the program started."""

import os
import sys
import time
from collections.abc import Callable

_started = time.monotonic()

Report = Callable[[str], None]


def say(message: str) -> None:
    """Prints one progress line. `DSV4_CLUSTER_QUIET=1` silences it."""
    if os.environ.get("DSV4_CLUSTER_QUIET") == "1":
        return
    print(f"[{time.monotonic() - _started:6.1f}s] {message}", file=sys.stderr, flush=True)
