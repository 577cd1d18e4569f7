"""Kernels run under Triton's interpreter: the switch is read when a kernel is defined, so it is set before imports."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "images" / "sglang" / "src"))
