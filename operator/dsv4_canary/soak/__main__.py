"""Entry point of ``python -m dsv4_canary.soak``."""

import sys

from dsv4_canary.soak.cli import main

if __name__ == "__main__":
    sys.exit(main())
