"""dsv4ctl canary against a simulated pair, healthy and with every fault that it should name."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from localcluster.ports import free_ports

ROOT = Path(__file__).resolve().parents[3]
DEADLINE = 60.0
MODEL = "simulator"
KEY = "sk-very-secret-41"


Start = Callable[..., str]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts engines; all are stopped at the end of the module."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(*flags: str, **env: str) -> str:
        (port,) = free_ports(1)
        command = [
            sys.executable, "-m", "sglang.launch_server", "--model-path", "/models/none", "--served-model-name", MODEL,
            "--host", "127.0.0.1", "--port", str(port), "--enable-metrics", "--enable-cache-report",
            "--tool-call-parser", "deepseekv4", "--reasoning-parser", "deepseek-v4", *flags,
        ]  # fmt: skip
        settings = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT / "images/engine-sim/src"),
            "SGLANG_HOST_IP": "127.0.0.1",
            "DSV4_SIM_STARTUP_SECONDS": "0.2",
            "DSV4_SIM_HEALTH_SECONDS": "0.05",
        }
        log = tmp_path_factory.mktemp("engine") / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(command, env=settings | env, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
        running.append(process)
        url, end = f"http://127.0.0.1:{port}", time.monotonic() + DEADLINE
        while not serves(url):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        return url

    yield begin
    for process in running:
        process.kill()
        process.wait(DEADLINE)


def serves(url: str) -> bool:
    with contextlib.suppress(OSError):
        try:
            urllib.request.urlopen(url + "/health", timeout=30).close()
        except urllib.error.HTTPError as error:
            return error.code == 401
        return True
    return False


@dataclass(frozen=True)
class Pair:
    prefill: str
    decode: str
    registry: int

    @property
    def words(self) -> tuple[str, ...]:
        return ("--prefill", self.prefill, "--decode", self.decode, "--bootstrap-port", str(self.registry))

    def switch(self, **values: Any) -> None:
        for url in (self.prefill, self.decode):
            request = urllib.request.Request(url + "/sim/switches", json.dumps(values).encode(), method="PUT")
            urllib.request.urlopen(request, timeout=30).close()


SLOW = {"DSV4_SIM_HOST_BANDWIDTH_MBPS": "2", "DSV4_SIM_TRANSFER_POST_MS": "20", "DSV4_SIM_LAYER_MS": "24"}
"""Loads from the host take long beside a busy machine's jitter."""


@pytest.fixture(scope="module")
def pair(start: Start) -> Pair:
    """A pair with HiCache whose pool holds one prompt, so that every repeated prompt is loaded back."""
    (registry,) = free_ports(1)
    role = ("--disaggregation-transfer-backend", "nixl", "--disaggregation-bootstrap-port", str(registry))
    env = SLOW | {"DSV4_INDEX_K_DTYPE": "bf16"}
    prefill = start(
        "--disaggregation-mode", "prefill", *role, "--enable-hierarchical-cache", **env, DSV4_SIM_POOL_PAGES="20"
    )
    return Pair(prefill, start("--disaggregation-mode", "decode", *role, **env), registry)


@pytest.fixture
def faulty(pair: Pair) -> Iterator[Pair]:
    """The pair, healthy again after the test."""
    yield pair
    pair.switch(transfer="ok", wedge="off", bad_pod="off", gate="on", busy_seconds=0)
    end = time.monotonic() + DEADLINE
    while not all(flushed(url) for url in (pair.prefill, pair.decode)):
        assert time.monotonic() < end, "an engine never came to rest"
        time.sleep(0.05)


def flushed(url: str) -> bool:
    try:
        urllib.request.urlopen(url + "/flush_cache", timeout=30).close()
    except urllib.error.HTTPError:
        return False
    return True


@pytest.mark.processes
def test_healthy_pair(ctl: Any, pair: Pair) -> None:
    done = ctl("canary", *pair.words)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == f"prefill {pair.prefill}: SGLang 0.5.23, healthy, HiCache"
    assert lines[1] == f"decode {pair.decode}: SGLang 0.5.23, healthy"
    assert lines[2] == f"model {MODEL}"
    assert any(line.startswith("pass: echo, whole, cold, ") for line in lines)
    assert any(line.startswith("pass: repeat, streamed, host, ") for line in lines)
    assert any(line.startswith("pass: quiet") for line in lines)
    assert "probes came back right" in done.out
    assert "right answers by cache: cold " in done.out


@pytest.mark.processes
def test_json(ctl: Any, pair: Pair) -> None:
    done = ctl("canary", *pair.words, "--probes", "echo,repeat", "--rounds", "2", "-o", "json")
    assert done.code == 0
    found = done.json
    assert (found["verdict"], found["model"]) == ("pass", MODEL)
    assert [probe["probe"] for probe in found["probes"]] == ["echo", "echo", "repeat", "repeat"] * 2
    assert all(probe["promptTokens"] >= 2600 for probe in found["probes"])
    assert found["tiers"]["cold"] == {"probes": 4, "failures": 0}
    assert [engine["role"] for engine in found["engines"]] == ["prefill", "decode"]
    assert found["engines"][0]["hiCache"] is True


@pytest.mark.processes
def test_dropped_transfer_accuses_prefill(ctl: Any, faulty: Pair) -> None:
    faulty.switch(transfer="drop")
    done = ctl("canary", *faulty.words, "--timeout", "6")
    assert done.code == 1
    assert "3 of 3 probes failed: tool calls did not come back in time" in done.out
    assert "note: prefill: computed prefills wait for their KV transfer" in done.out
    assert "note: decode:" not in done.out
    assert "stopped after 3 requests" in done.out


@pytest.mark.processes
def test_wedged_decode_is_named(ctl: Any, faulty: Pair) -> None:
    faulty.switch(wedge="on")
    request = urllib.request.Request(faulty.prefill + "/sim/switches", b'{"wedge": "off"}', method="PUT")
    urllib.request.urlopen(request, timeout=30).close()
    done = ctl("canary", *faulty.words, "--timeout", "6", "--probes", "echo,repeat")
    assert done.code == 1
    assert "note: decode: requests run, but the engine computes and generates no token" in done.out
    assert "note: prefill:" not in done.out


@pytest.mark.processes
def test_busy_is_no_fault(ctl: Any, faulty: Pair) -> None:
    faulty.switch(busy_seconds=60)
    done = ctl("canary", *faulty.words, "--timeout", "4", "--probes", "echo")
    assert done.code == 2
    assert "busy: echo, whole" in done.out
    assert "nothing was proved: no answer in time, but the engines are at work" in done.out


@pytest.mark.processes
def test_bad_pod_is_damage_and_not_silence(ctl: Any, faulty: Pair) -> None:
    faulty.switch(bad_pod="compute")
    done = ctl("canary", *faulty.words, "--probes", "echo,repeat", "-o", "json")
    assert done.code == 1
    assert done.json["verdict"] == "fail"
    assert done.json["tiers"]["cold"]["failures"] > 0
    assert any(probe["signatures"] for probe in done.json["probes"])


@pytest.mark.processes
def test_ungated_index_keys_damage_reloaded_prompts_alone(ctl: Any, faulty: Pair) -> None:
    faulty.switch(gate="off")
    found: dict[str, Any] = {}
    for _ in range(5):  # a race: most rounds have it, one may not
        done = ctl("canary", *faulty.words, "--probes", "echo,repeat,twin", "--rounds", "2", "-o", "json")
        found = done.json
        if found["verdict"] == "fail":
            break
    assert found["verdict"] == "fail"
    assert found["message"].endswith("which speaks for index keys or KV of cached prefixes")
    assert found["tiers"]["cold"]["failures"] == 0
    assert found["tiers"]["host"]["failures"] > 0


@pytest.mark.processes
def test_wrong_address_of_the_registry(ctl: Any, pair: Pair) -> None:
    (nobody,) = free_ports(1)
    words = ["--prefill", pair.prefill, "--decode", pair.decode, "--bootstrap-port", str(nobody)]
    done = ctl("canary", *words, "--timeout", "4", "--probes", "echo,repeat")
    assert done.code == 1
    assert f"decode was told to find the prefill at 127.0.0.1:{nobody}; give --bootstrap-host" in done.out


@pytest.mark.processes
def test_wrong_sides(ctl: Any, pair: Pair) -> None:
    done = ctl("canary", "--prefill", pair.decode, "--decode", pair.prefill)
    assert (done.code, done.out) == (2, "")
    assert done.err == f"dsv4ctl: prefill {pair.decode}: is a decode; swap the two\n"
    done = ctl("canary", "--endpoint", pair.decode + "/v1")
    assert done.code == 2
    assert f"endpoint {pair.decode}: is the decode of a pair, which answers nothing alone" in done.err


@pytest.mark.processes
def test_plain_endpoint_with_a_key(ctl: Any, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    url = start("--api-key", KEY)
    monkeypatch.delenv("DSV4CTL_API_KEY", raising=False)
    done = ctl("canary", "--endpoint", url)
    assert done.code == 2
    assert "answers HTTP 401; an API key is read from the environment" in done.err
    monkeypatch.setenv("DSV4CTL_API_KEY", KEY)
    for words in (["-o", "json"], []):
        done = ctl("canary", "--endpoint", url + "/v1/", "--probes", "echo,quiet", *words)
        assert done.code == 0, done
        assert KEY not in done.out + done.err
    assert f"endpoint {url}: SGLang 0.5.23" in done.out
    monkeypatch.setenv("MY_KEY", "wrong-key-42")
    done = ctl("canary", "--endpoint", url, "--api-key-env", "MY_KEY", "--model", MODEL)
    assert done.code == 2
    assert f"dsv4ctl: {url}: answers HTTP 401 to requests; an API key is read from the environment" in done.err
    assert "wrong-key-42" not in done.out + done.err
    done = ctl("canary", "--endpoint", url, "--api-key-env", "NO_SUCH_KEY")
    assert done.err == "dsv4ctl: --api-key-env NO_SUCH_KEY: is not set; export it, or leave the option out\n"


@pytest.mark.processes
def test_on_a_terminal(pair: Pair) -> None:
    """A table that grows, and a coloured sentence; whole as a user sees it."""
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "dsv4_operator.cli.main", "canary", *pair.words, "--probes", "echo"]
    env = os.environ | {"PYTHONPATH": str(ROOT / "operator"), "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(command, env=env, stdout=child, stderr=child, stdin=child)
    os.close(child)
    data = b""
    with contextlib.suppress(OSError):  # EIO: the program has ended
        while piece := os.read(parent, 4096):
            data += piece
    os.close(parent)
    assert process.wait(DEADLINE) == 0
    text = data.decode()
    assert "PROBE" in text
    assert "echo, streamed" in text
    assert "\x1b[1;32mpass: 2 of 2 probes came back right" in text
    assert "\x1b[?25h" in text  # the cursor is back


# Usage.

ENDPOINT = ("--endpoint", "http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give either --endpoint, or --prefill and --decode"),
        ([*ENDPOINT, "--decode", "http://a"], "give either --endpoint, or --prefill and --decode"),
        (["--prefill", "http://a"], "a pair has two sides"),
        (["--endpoint", "a:30000"], "--endpoint 'a:30000': is no URL of a server"),
        (["--endpoint", "http://a:x"], "--endpoint: Port could not be cast"),
        (["--endpoint", "http://a?x=1"], "is no URL of a server"),
        ([*ENDPOINT, "--probes", "echo,foo"], "--probes: 'foo' is no probe; use some of echo,repeat"),
        ([*ENDPOINT, "--probes", ","], "--probes: names no probe"),
        ([*ENDPOINT, "--rounds", "0"], "--rounds: '0' is no whole number from 1"),
        ([*ENDPOINT, "--timeout", "x"], "--timeout: 'x' is no whole number"),
        (ENDPOINT, "endpoint http://127.0.0.1:1: refuses connections"),
    ],
)
def test_usage(ctl: Any, words: list[str], said: str) -> None:
    done = ctl("canary", *words)
    assert done.code == 2
    assert said in done.err
    assert len(done.err.splitlines()) == 1


def test_password_in_a_url_is_refused_and_not_shown(ctl: Any) -> None:
    done = ctl("canary", "--endpoint", f"http://me:{KEY}@127.0.0.1:1")
    assert done.code == 2
    assert KEY not in done.out + done.err


def test_unreachable_as_json(ctl: Any) -> None:
    done = ctl("canary", *ENDPOINT, "-o", "json")
    assert done.code == 2
    assert done.json["verdict"] is None
    assert "refuses connections" in done.json["error"]


def test_without_the_library(ctl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "dsv4_canary.checkup", raising=False)
    monkeypatch.setitem(sys.modules, "dsv4_canary.checkup", None)
    done = ctl("canary", *ENDPOINT)
    assert done.code == 2
    assert "pip install '.[cli,canary]'" in done.err


def test_help_has_examples(ctl: Any) -> None:
    for command in ("canary", "classify"):
        done = ctl(command, "--help")
        assert done.code == 0
        assert f"  dsv4ctl {command} --" in done.out
        assert "Exit codes: 0 " in done.out
        assert max(map(len, done.out.splitlines())) <= 120
