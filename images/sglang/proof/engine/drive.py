"""Run scenarios on the GPU machine: drive.py [--limit SECONDS] [--total SECONDS] SCENARIO [SCENARIO...]

Every arm's result is one line of $OUT/results.jsonl as soon as it is there; logs end up in $OUT/logs.tar.gz, a table in
$OUT/summary.txt. Exit status 0 when every arm came out as expected.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import bf16_scenarios
import canary_scenarios
import scenarios
from scenarios import ANY, Arm
from servers import Server

BEGUN = time.time()
SCENARIOS = {**scenarios.SCENARIOS, **bf16_scenarios.SCENARIOS, **canary_scenarios.SCENARIOS}
LOGS = Path(os.environ.get("PROOF_LOGS", "/tmp/proof-logs"))
"""Beside $OUT, which takes few files."""


def say(*words: Any, sep: str = " ") -> None:
    """One line of progress with the time since the start."""
    print(f"[{time.time() - BEGUN:6.1f}]", *words, sep=sep, flush=True)


def hardware() -> dict[str, str]:
    """Card, driver and versions, for the record."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        card = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False).stdout.strip()
    except OSError as error:
        card = str(error)
    code = "import torch,sglang;print(torch.__version__,torch.version.cuda,sglang.__version__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    return {"card": card, "torch_cuda_sglang": done.stdout.strip()}


def run(names: list[str], port: int, out: Path, limit: float) -> list[dict[str, Any]]:
    """Start all arms of the scenarios, test them in turn, stop them."""
    named = [(name, arm) for place, name in enumerate(names) for arm in SCENARIOS[name](port + 1000 * place, LOGS)]
    arms = [arm for _, arm in named]
    servers = [server for arm in arms for server in arm.servers]
    until = time.time() + limit
    alarm = threading.Timer(limit, lambda: [server.stop() for server in servers])
    alarm.daemon = True
    alarm.start()
    results = []
    try:
        for server in servers:
            server.start()
        for name, arm in named:
            results.append(test(name, arm, until))
            record(out, results[-1])
    finally:
        alarm.cancel()
        for server in servers:
            server.stop()
    return results


def test(name: str, arm: Arm, until: float) -> dict[str, Any]:
    """Wait for the arm's servers and check them."""
    begun = time.time()
    down = [server for server in arm.servers if time.time() > until or not server.ready(until)]
    if down:
        for server in down:
            say(server.name, "not ready, exit", server.process.poll(), *server.trouble(), sep="\n    ")
        result: dict[str, Any] = {"verdict": "not ready", "servers": [server.name for server in down]}
    else:
        say(arm.name, f"ready {time.time() - min(server.started for server in arm.servers):.0f} s after start")
        try:
            result = arm.check()
        except Exception:
            result = {"verdict": "error", "answer": traceback.format_exc()[-1500:]}
        if time.time() > until:
            result = {"verdict": "cut", "answer": "the limit ended the servers during this arm", "found": result}
        if result["verdict"] == "error":
            say(arm.name, str(result.get("answer", result))[:1500])
            for server in arm.servers:
                say(server.name, *server.trouble(12), sep="\n    ")
    result = {
        "scenario": name,
        "arm": arm.name,
        "expect": arm.expect,
        "as_expected": result["verdict"] == arm.expect
        or (arm.expect == ANY and result["verdict"] in ("right", "wrong")),
        "seconds": round(time.time() - begun, 1),
        "guard_lines": guard_lines(arm.servers),
        **result,
    }
    brief = {
        key: result[key]
        for key in ("verdict", "expect", "wrong", "wrong_rounds", "of", "errors", "refused")
        if key in result
    }
    say(arm.name, "AS EXPECTED" if result["as_expected"] else "UNEXPECTED", brief)
    return result


def guard_lines(servers: list[Server]) -> dict[str, list[str]]:
    """What the plugin logged, per server."""
    return {
        server.name: [
            line[:300] for line in server.text().splitlines() if "dsv4_guard" in line or "early send to" in line
        ][:20]
        for server in servers
        if server.log.exists()
    }


def record(out: Path, result: dict[str, Any]) -> None:
    """Add a result, and pack the logs again, so that a run that is cut short leaves everything so far."""
    with (out / "results.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(result) + "\n")
    with tarfile.open(out / "logs.tar.gz", "w:gz") as archive:
        archive.add(LOGS, "logs")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=float, default=240, help="seconds for one scenario, start included")
    parser.add_argument("--total", type=float, default=560, help="seconds after which no further scenario starts")
    parser.add_argument("--together", action="store_true", help="start the servers of all scenarios at once")
    parser.add_argument("scenarios", nargs="+", choices=[*SCENARIOS])
    arguments = parser.parse_args()
    out = Path(os.environ.get("OUT", "out"))
    out.mkdir(parents=True, exist_ok=True)
    LOGS.mkdir(parents=True, exist_ok=True)
    record(out, {"scenario": "hardware", **hardware()})
    results, port = [], 30000
    groups = [arguments.scenarios] if arguments.together else [[name] for name in arguments.scenarios]
    for names in groups:
        left = arguments.total - (time.time() - BEGUN)
        if left < 60:
            say(*names, f"not started, {left:.0f} s left")
            continue
        say("=====", *names)
        results += run(names, port, out, min(arguments.limit, left))
        port += 2000
    table = [
        f"{entry['arm']:32} {entry['verdict']:10} expected {entry['expect']:10} {entry['seconds']:6.1f} s"
        for entry in results
    ]
    (out / "summary.txt").write_text("\n".join(table) + "\n", encoding="utf-8")
    print("\n".join(table))
    return 0 if results and all(entry["as_expected"] for entry in results) else 1


if __name__ == "__main__":
    sys.exit(main())
