"""Writes the monitoring files (rules, scrape objects, dashboard); with --check says what is stale and exits 1."""

from __future__ import annotations

import argparse
import sys

from monitoring.files import ROOT, wanted_files


def main() -> int:
    """Write or check. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python hack/monitoring_files.py", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 when something is stale")
    check = parser.parse_args().check
    stale = 0
    for path, text in wanted_files():
        present = path.read_text(encoding="utf-8") if path.exists() else ""
        if present == text:
            continue
        stale += 1
        if check:
            print(f"{path.relative_to(ROOT)} is stale; run `python hack/monitoring_files.py`", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
