"""Stand-in for the `sglang` package: only ``python -m sglang.launch_server`` exists, and it starts a SIMULATOR."""

from dsv4_engine_sim.settings import imitated_release

__version__ = f"{imitated_release()}+simulator"
