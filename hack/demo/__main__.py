"""`make demo`: from a bare machine to a served tool call, a toggle, a new generation and the canary's metrics.

With KUBECONFIG set, that cluster is used instead of the embedded one: images must then be ones it can pull.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from rich.console import Console
from stage import DemoError, Stage, embedded_stage, foreign_stage
from story import play

from localcluster.errors import ClusterError

NAME = "demo"


def main() -> int:
    """Entry point; exit code 1 with one line when something cannot go on."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("action", choices=["up", "down"])
    arguments = parser.parse_args()
    console = Console(highlight=False)
    foreign = os.environ.get("KUBECONFIG")
    try:
        if arguments.action == "down":
            _stage(console, foreign).remove()
            return 0
        started = time.monotonic()
        stage = _stage(console, foreign)
        stage.prepare()
        play(stage, console)
        _look_around(console, stage, time.monotonic() - started)
    except (DemoError, ClusterError) as error:
        console.print(f"[bold red]error:[/] {error}", soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("\ninterrupted; `make demo` goes on from here, `make demo-down` removes everything")
        return 130
    return 0


def _stage(console: Console, foreign: str | None) -> Stage:
    return foreign_stage(console, Path(foreign)) if foreign else embedded_stage(console, NAME)


def _look_around(console: Console, stage: Stage, seconds: float) -> None:
    console.rule("[bold]look around")
    console.print(f"The demo took {seconds:.0f} s. It goes on running; things to try:\n")
    console.print(f"  export KUBECONFIG={stage.kubeconfig}", soft_wrap=True)
    console.print(f"  export PATH={stage.kubectl.parent}:$PATH        # kubectl and helm", soft_wrap=True)
    console.print(f"  kubectl -n {stage.namespace} get dsv4 -o wide")
    console.print(f"  kubectl -n {stage.namespace} describe dsv4 demo")
    console.print(f"  kubectl -n {stage.namespace} get pods -w")
    console.print("  kubectl explain dsv4.spec.hiCache")
    console.print(f"  kubectl -n {stage.namespace} edit dsv4 demo              # toggle something and watch what rolls")
    console.print("\nmake demo-down removes all of it.")


if __name__ == "__main__":
    raise SystemExit(main())
