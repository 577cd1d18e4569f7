"""Real SGLang servers with a tiny random DeepSeek-V4, several on one GPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MODEL = Path(__file__).resolve().parent / "model"
COMMON = (
    f"--model-path {MODEL} --load-format dummy --skip-tokenizer-init --host 127.0.0.1 --max-total-tokens 32768 "
    "--swa-full-tokens-ratio 0.5 --max-running-requests 8 --fp8-gemm-backend triton --moe-runner-backend triton "
    "--sampling-backend pytorch --grammar-backend none --disable-shared-experts-fusion --skip-server-warmup "
    "--enable-cache-report --watchdog-timeout 400 --random-seed 1 --mem-fraction-static 0.8 --enable-metrics"
).split()
HICACHE = ["--enable-hierarchical-cache", "--hicache-ratio", "4"]
EAGER = ["--disable-cuda-graph"]
Answer = dict[str, Any]
"""What /generate returned, or {"error", "body"}."""


@dataclass
class Server:
    """One server process group and its log."""

    name: str
    port: int
    logs: Path
    arguments: list[str]
    environ: dict[str, str] = field(default_factory=dict)
    chunk: int = 8192
    process: Any = None
    started: float = 0.0

    def start(self) -> None:
        command = [sys.executable, "-m", "sglang.launch_server", *COMMON, "--port", str(self.port)]
        command += ["--chunked-prefill-size", str(self.chunk), *self.arguments]
        self.started = time.time()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environ},
                start_new_session=True,
            )

    @property
    def log(self) -> Path:
        return self.logs / f"{self.name}.log"

    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def ready(self, until: float) -> bool:
        """Wait for the server to listen; False when it died or time is up."""
        while time.time() < until:
            if self.process.poll() is not None:
                return False
            if "Uvicorn running" in self.text():
                try:
                    self.get("/model_info", 5)
                except OSError:
                    pass
                else:
                    return True
            time.sleep(0.5)
        return False

    def get(self, path: str, timeout: float = 10) -> str:
        with urllib.request.urlopen(self.url(path), timeout=timeout) as reply:
            return str(reply.read().decode())

    def generate(self, ids: list[int], count: int, extra: Answer | None = None, timeout: float = 120) -> Answer:
        sampling = {"temperature": 0, "max_new_tokens": count, "ignore_eos": True}
        body = {"input_ids": ids, "sampling_params": sampling, "return_logprob": True, "top_logprobs_num": 20}
        data = json.dumps({**body, **(extra or {})}).encode()
        request = urllib.request.Request(self.url("/generate"), data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=timeout) as reply:
                answer: Answer = json.loads(reply.read())
                return answer
        except urllib.error.HTTPError as error:
            return {"error": error.code, "body": error.read().decode()[:600]}
        except Exception as error:
            return {"error": type(error).__name__, "body": str(error)[:300]}

    def signal(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def stop(self) -> None:
        if self.process is None:
            return
        for number in (signal.SIGCONT, signal.SIGKILL):
            try:
                self.signal(number)
            except ProcessLookupError:
                return
        self.process.wait()

    def marker(self) -> list[str]:
        """Lines of dsv4_guard_info and of the digest's counter on /metrics."""
        try:
            text = self.get("/metrics")
        except OSError as error:
            return [f"unreadable: {error}"]
        return [line for line in text.splitlines() if line.startswith(("dsv4_guard_info", "dsv4_guard_index"))]

    def trouble(self, lines: int = 30) -> list[str]:
        """The end of the log, from the first traceback on."""
        text = [line[:300] for line in self.text().splitlines() if line.strip()]
        first = next((number for number, line in enumerate(text) if "Traceback" in line), max(0, len(text) - lines))
        return [*text[first : first + lines], "...", *text[-8:]]


def single(name: str, port: int, logs: Path, environ: dict[str, str], *arguments: str) -> Server:
    """Prefill and decode in one server, HiCache on."""
    return Server(name, port, logs, [*HICACHE, *EAGER, *arguments], environ)


class Pair:
    """A prefill and one or more decodes, over NIXL. `answer` sends to both sides like a router."""

    _room = 1000
    _lock = threading.Lock()

    def __init__(
        self,
        name: str,
        port: int,
        logs: Path,
        prefill_env: dict[str, str],
        decode_env: dict[str, str] | None = None,
        *,
        hicache: bool = True,
        decodes: int = 1,
        chunk: int = 8192,
        prefill_arguments: tuple[str, ...] = (),
        decode_arguments: tuple[str, ...] = (),
        decode_graphs: bool = False,
    ) -> None:
        self.name, self.bootstrap = name, port + 90
        nixl = ["--disaggregation-transfer-backend", "nixl"]
        boot = ["--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", str(self.bootstrap)]
        hi = HICACHE if hicache else []
        self.prefill = Server(
            f"{name}-P", port, logs, [*nixl, *EAGER, *boot, *hi, *prefill_arguments], prefill_env, chunk
        )
        graphs = ["--cuda-graph-max-bs", "4"] if decode_graphs else EAGER
        role = [*nixl, *graphs, "--disaggregation-mode", "decode", *decode_arguments]
        environ = prefill_env if decode_env is None else decode_env
        self.decodes = [
            Server(f"{name}-D{n}" if decodes > 1 else f"{name}-D", port + 10 * (n + 1), logs, role, environ, chunk)
            for n in range(decodes)
        ]

    @property
    def servers(self) -> list[Server]:
        return [self.prefill, *self.decodes]

    def room(self) -> Answer:
        """Fields that join the two halves of one request."""
        with Pair._lock:
            Pair._room += 1
            room = Pair._room
        return {"bootstrap_host": "127.0.0.1", "bootstrap_port": self.bootstrap, "bootstrap_room": room}

    def answer(
        self, ids: list[int], count: int, decode: int = 0, timeout: float = 120, prefill_logprobs: bool = True
    ) -> Answer:
        """Decode's answer, with prefill's cache counts; {"error"} with both sides' words when either failed.

        Logprobs on prefill make its host wait for every chunk's forward; without them the first position has none.
        """
        extra, halves = self.room(), {}

        def prefill() -> None:
            fields = {**extra, **({} if prefill_logprobs else {"return_logprob": False, "top_logprobs_num": 0})}
            halves["prefill"] = self.prefill.generate(ids, count, fields, timeout)

        thread = threading.Thread(target=prefill)
        thread.start()
        answer = self.decodes[decode].generate(ids, count, extra, timeout)
        thread.join(timeout + 10)
        first = halves.get("prefill", {"error": "no answer"})
        if "error" in first or "error" in answer:
            return {
                "error": "pair",
                "prefill": first if "error" in first else "ok",
                "decode": answer if "error" in answer else "ok",
            }
        answer["cached"] = {
            "tokens": first["meta_info"].get("cached_tokens"),
            "details": first["meta_info"].get("cached_tokens_details"),
        }
        return answer
