"""``python3 -m sglang.launch_server`` with the command line of the imitated SGLang release; runs the simulator."""

import sys

from dsv4_engine_sim.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
