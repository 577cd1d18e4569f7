"""Entry point of ``python -m dsv4_canary``."""

import sys

from dsv4_canary.cli import main

if __name__ == "__main__":
    sys.exit(main())
