"""`dsv4-operator` and `python -m dsv4_operator`: run the operator."""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from dsv4_operator.kube.connect import ConnectError
from dsv4_operator.operator import LeadershipLost, run_until_signalled
from dsv4_operator.runtime.logs import setup_logging
from dsv4_operator.runtime.settings import parse_settings, unknown_variables

LOG = logging.getLogger("dsv4_operator")


def main() -> None:
    """Entry point. Exit code 0 after a clean stop, 1 when leadership or the connection is lost, 2 for bad settings."""
    settings = parse_settings(sys.argv[1:])
    setup_logging(settings.log_format, settings.log_level)
    for name in unknown_variables(os.environ):
        LOG.warning("environment variable %s is no setting of this operator", name)
    try:
        asyncio.run(run_until_signalled(settings))
    except LeadershipLost:
        LOG.error("leadership lost; exiting so that nobody writes beside the new leader")
        raise SystemExit(1) from None
    except ConnectError as error:
        LOG.error("%s", error)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
