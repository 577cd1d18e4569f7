# mypy: disable-error-code="import-not-found"
"""Resolve launch commands with the REAL ServerArgs of one SGLang release, on a CPU that poses as an NVIDIA GPU.

Runs inside the environment that hack/contract/venvs.py makes for the release; imports nothing of the operator.

    python resolve_driver.py SM100 < jobs.jsonl > results.jsonl

A job: {"id", "argv": [flags of sglang.launch_server], "env": {name: value}}.
A result: {"id", "outcome": "accepted" | "refused" | "unparsed", "error", "values": {field: resolved}, "log": [...]}.
Each job runs in a forked child, so neither environment nor state of one reaches the next. Nothing is loaded: no
weights, no GPU, no network; the resolution is what `sglang.launch_server` does before it starts processes.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.abc
import importlib.machinery
import io
import json
import logging
import os
import sys
import types
from pathlib import Path
from typing import Any

CAPABILITY = {"SM90": (9, 0), "SM100": (10, 0), "SM103": (10, 3), "SM120": (12, 0)}
NAMES = {"SM90": "NVIDIA H200", "SM100": "NVIDIA B200", "SM103": "NVIDIA B300", "SM120": "NVIDIA RTX PRO 6000"}
MEMORY_GIB = {"SM90": 141, "SM100": 180, "SM103": 270, "SM120": 96}
GPUS = 8


def pose(architecture: str) -> None:
    """Make torch tell of GPUs that are not there. Only queries are answered; any real CUDA call still fails."""
    import torch  # noqa: PLC0415

    total = MEMORY_GIB[architecture] << 30
    properties = types.SimpleNamespace(
        name=NAMES[architecture],
        major=CAPABILITY[architecture][0],
        minor=CAPABILITY[architecture][1],
        total_memory=total,
        multi_processor_count=148,
        warp_size=32,
        uuid="0",
    )
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: GPUS
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_capability = lambda *_: CAPABILITY[architecture]
    torch.cuda.get_device_name = lambda *_: NAMES[architecture]
    torch.cuda.get_device_properties = lambda *_: properties
    torch.cuda.mem_get_info = lambda *_: (total, total)
    torch.cuda.get_arch_list = lambda: ["sm_90", "sm_100", "sm_103", "sm_120"]
    torch.cuda.set_device = lambda *_: None
    torch.cuda.synchronize = lambda *_: None
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(str(number) for number in range(GPUS))


STAND_INS = ("flashinfer", "sgl_kernel", "deep_gemm", "flash_mla", "tvm_ffi")
"""Kernel packages that the resolution imports or asks for by name and never calls."""


class _StandIn(types.ModuleType):
    """A module in which every name exists; calling one is an error."""

    __version__ = "99.0.0"
    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Names(name, (), {"__init__": _must_not_run, "__module__": self.__name__})


class _Names(type):
    """A class in which every name exists too."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Names(name, (), {"__init__": _must_not_run})


def _must_not_run(*_: Any, **__: Any) -> None:
    raise RuntimeError("a stand-in for a kernel package was called")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the stand-ins and their submodules where the real package is not installed."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname.split(".", 1)[0] in STAND_INS:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def patch_memory(architecture: str) -> None:
    """SGLang asks nvidia-smi for the memory of a card."""
    from sglang.srt.utils import common  # noqa: PLC0415

    def capacity(*_: Any, **__: Any) -> int:
        return MEMORY_GIB[architecture] * 1024

    for name in ("get_nvgpu_memory_capacity",):
        for module in list(sys.modules.values()):
            if getattr(module, name, None) is getattr(common, name):
                setattr(module, name, capacity)


def plain(value: Any) -> Any:
    """The value as JSON can hold it."""
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return repr(value)


def resolved(arguments: Any) -> dict[str, Any]:
    """All fields after resolution: up to 0.5.19 on the object itself, later through the view of the resolution."""
    view = arguments
    if hasattr(arguments, "resolve_once"):
        arguments.resolve_once()
        from sglang.srt.arg_groups import overrides  # noqa: PLC0415

        view = overrides.resolved_view(arguments)
    fields = getattr(type(arguments), "__struct_fields__", None) or tuple(type(arguments).__dataclass_fields__)
    return {name: plain(getattr(view, name)) for name in fields}


def one(job: dict[str, Any]) -> dict[str, Any]:
    """Resolve one job in this process."""
    os.environ.update(job["env"])
    lines = io.StringIO()
    result: dict[str, Any] = {"id": job["id"], "error": None, "values": {}}
    with contextlib.redirect_stderr(lines), contextlib.redirect_stdout(lines):
        try:
            from sglang.srt.server_args import prepare_server_args  # noqa: PLC0415

            result["values"] = resolved(prepare_server_args(job["argv"]))
            result["outcome"] = "accepted"
        except SystemExit as error:
            result |= {"outcome": "unparsed", "error": lines.getvalue().strip().splitlines()[-1:] or [str(error)]}
            result["error"] = result["error"][0]
        except ImportError as error:
            # The environment lacks something: that is no refusal of upstream's.
            result |= {"outcome": "broken", "error": f"{type(error).__name__}: {error}"}
        except Exception as error:
            result |= {"outcome": "refused", "error": f"{type(error).__name__}: {error}"}
    logging.shutdown()
    result["modules"] = [name for name in sys.modules if "." in name] if job.get("modules") else []
    result["log"] = [line for line in lines.getvalue().splitlines() if line.strip()][-40:]
    return result


def forked(job: dict[str, Any]) -> str:
    """Resolve one job in a child; returns its JSON line."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            answer = json.dumps(one(job))
        except BaseException as error:
            answer = json.dumps({"id": job["id"], "outcome": "broken", "error": repr(error), "values": {}, "log": []})
        with os.fdopen(writer, "w") as pipe:
            pipe.write(answer)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


def preload(modules: list[str]) -> None:
    """Import here, once, what a resolution imports, so that the children need not."""
    with contextlib.redirect_stdout(sys.stderr):
        for name in modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    gc.collect()
    gc.freeze()


def parser_table() -> dict[str, Any]:
    """Every flag of the real argparse parser: what the data read from the wheel must equal."""
    import argparse  # noqa: PLC0415

    from sglang.srt.server_args import ServerArgs  # noqa: PLC0415

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return {
        action.option_strings[0]: {
            "names": list(action.option_strings),
            "dest": action.dest,
            "takes_value": action.nargs != 0,
            "choices": sorted({str(choice) for choice in action.choices}) if action.choices is not None else None,
            "default": plain(action.default) if action.default is not argparse.SUPPRESS else None,
            "required": action.required,
            "type": getattr(action.type, "__name__", None),
        }
        for action in parser._actions
        if action.option_strings != ["-h", "--help"]
    }


def main() -> int:
    """Read jobs from standard input, write results to standard output, in order."""
    pose(sys.argv[1])
    sys.meta_path.append(_Finder())
    with contextlib.redirect_stdout(sys.stderr):
        import sglang.srt.server_args  # noqa: F401, PLC0415

        patch_memory(sys.argv[1])
    if sys.argv[2:] == ["--parser"]:
        with contextlib.redirect_stdout(sys.stderr):
            table = parser_table()
        print(json.dumps(table))
        return 0
    learnt = Path(sys.prefix) / "resolution-modules.json"
    known = json.loads(learnt.read_text(encoding="utf-8")) if learnt.exists() else []
    preload(known)
    for line in sys.stdin:
        if not line.strip():
            continue
        answer = json.loads(forked(json.loads(line) | {"modules": not known}))
        modules = answer.pop("modules", [])
        if modules:
            known = modules
            part = learnt.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps(modules), encoding="utf-8")
            part.replace(learnt)
            preload(modules)
        print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
