"""Polling with a deadline: the only way this package waits for something."""

import time
from collections.abc import Callable
from typing import TypeVar

from localcluster.errors import ClusterError

T = TypeVar("T")


def wait_for(what: str, probe: Callable[[], T | None], timeout: float, interval: float = 0.1) -> T:
    """Calls `probe` until it gives something true; an exception of the last call ends up in the error.

    Raises ClusterError after `timeout` seconds. Network errors of the probe count as "not yet".
    """
    deadline = time.monotonic() + timeout
    last: Exception | None = None
    while True:
        try:
            found = probe()
            if found:
                return found
        except (OSError, ValueError, LookupError) as error:
            last = error
        if time.monotonic() >= deadline:
            why = f" (last error: {last})" if last else ""
            raise ClusterError(f"gave up after {timeout:.0f} s waiting for {what}{why}")
        time.sleep(interval)
