"""drive.py with the bf16 scenarios as well: bf16_drive.py [options of drive.py] bf16-single bf16-pairs bf16-mismatch"""

from __future__ import annotations

import sys

import bf16_scenarios
import drive
import scenarios

if __name__ == "__main__":
    scenarios.SCENARIOS.update(bf16_scenarios.SCENARIOS)
    sys.exit(drive.main())
