# mypy: disable-error-code="import-not-found"
"""Runs test cases against the REAL modules of one SGLang release, on a CPU that poses as an NVIDIA GPU.

    python host.py RELEASE_FOLDER < jobs > results

Runs in the environment that hack/contract/venvs.py makes; SGLang itself comes from the unpacked wheel in
RELEASE_FOLDER. The modules are imported once; each job {"module", "case", "arguments", "env"} runs a function of
tests/plugin/cases in a forked child, so that no patch reaches the next. A result: {"exit", "value", "output"}.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WARM = (
    "sglang.srt.mem_cache.deepseek_v4_memory_pool",
    "sglang.srt.disaggregation.nixl.conn",
    "sglang.srt.managers.scheduler",
    "sglang.srt.entrypoints.engine",
    "sglang.srt.entrypoints.openai.serving_chat",
    "sglang.srt.disaggregation.prefill",
    "sglang.srt.disaggregation.decode",
    "sglang.srt.plugins.hook_registry",
)


def prepare(folder: str) -> None:
    """Stand-ins for kernel packages, and one environment's transformers for two releases."""
    sys.path[:0] = [folder, str(ROOT / "hack" / "contract"), str(ROOT / "images" / "sglang" / "src"), str(HERE)]
    # jsonschema, which SGLang requires too, from the environment of the tests: the same Python.
    sys.path.append(os.environ["DSV4_TEST_SITE"])
    import resolve_driver

    resolve_driver.STAND_INS += ("xgrammar",)
    sys.meta_path.insert(0, resolve_driver._Finder())
    resolve_driver.pose("SM90")
    import pydantic
    import xgrammar

    xgrammar.StructuralTag = type("StructuralTag", (pydantic.BaseModel,), {})
    from transformers.models.auto import configuration_auto

    mapping = configuration_auto._LazyConfigMapping
    register = mapping.register
    # An older SGLang brings model configurations that a newer transformers has itself.
    mapping.register = lambda self, key, value, exist_ok=False: register(self, key, value, exist_ok=True)


def child(job: dict[str, Any], out: str) -> None:
    """Run one case and leave its value in `out`. Never returns."""
    status = 0
    try:
        os.environ.update(job.get("env", {}))
        case = getattr(importlib.import_module(f"cases.{job['module']}"), job["case"])
        value = case(**job.get("arguments", {}))
        Path(out).write_text(json.dumps(value), encoding="utf-8")
    except SystemExit as error:
        if isinstance(error.code, int):
            status = error.code
        elif error.code is not None:
            print(error.code, file=sys.stderr)
            status = 1
    except BaseException:
        traceback.print_exc()
        status = 70
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Fork, run, collect."""
    with tempfile.TemporaryDirectory() as folder:
        log, out = f"{folder}/log", f"{folder}/value"
        pid = os.fork()
        if pid == 0:
            target = os.open(log, os.O_WRONLY | os.O_CREAT)
            os.dup2(target, 1)
            os.dup2(target, 2)
            sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", closefd=False), line_buffering=True)
            sys.stderr = io.TextIOWrapper(os.fdopen(2, "wb", closefd=False), line_buffering=True)
            child(job, out)
        _, status = os.waitpid(pid, 0)
        value = json.loads(Path(out).read_text(encoding="utf-8")) if Path(out).exists() else None
        output = Path(log).read_text(encoding="utf-8", errors="replace")
    return {"exit": os.waitstatus_to_exitcode(status), "value": value, "output": output}


def main() -> None:
    """Serve jobs, one JSON line each, until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    prepare(sys.argv[1])
    for module in WARM:
        importlib.import_module(module)
    answers.write("ready\n")
    answers.flush()
    for line in sys.stdin:
        answers.write(json.dumps(run(json.loads(line))) + "\n")
        answers.flush()
    os._exit(0)  # nothing to tidy up, and the interpreter's own tidying takes long with all of SGLang in it


if __name__ == "__main__":
    main()
