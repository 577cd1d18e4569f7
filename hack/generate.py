"""Regenerates every generated file, or with --check says which one is not current."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GENERATORS = (
    ("the CRD", ["-m", "dsv4_operator.api.crd"]),
    ("the API reference", ["-m", "dsv4_operator.api.reference"]),
    ("the reference of policy", ["-m", "dsv4_operator.policy.reference"]),
    ("the engine matrix", ["hack/contract/engine_matrix.py"]),
    ("the table of imported launches", ["hack/import_table.py"]),
    ("rules, scrape objects and dashboard", ["hack/monitoring_files.py"]),
    ("the chart's copies and tables", ["charts/sync.py"]),
)


def main() -> int:
    """Run all of them; exit code 1 when --check finds a file that is not current."""
    arguments = sys.argv[1:]
    failed = []
    for what, command in GENERATORS:
        done = subprocess.run([sys.executable, *command, *arguments], cwd=ROOT, check=False)
        if done.returncode:
            failed.append(what)
    if failed:
        print(f"not current: {', '.join(failed)}; run `make crds` and commit the result", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
