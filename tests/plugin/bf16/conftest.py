"""Kernels run under Triton's interpreter, in the environment that holds torch and Triton, not in this one.

The switch is read when a kernel is defined, so every process that this one starts gets it from its start.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"
collect_ignore = ["interpreted"]
"""Run by test_interpreted.py, in that environment."""
