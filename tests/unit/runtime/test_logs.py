from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator

import pytest

from dsv4_operator.runtime.logs import about, mask, setup_logging


@pytest.fixture(autouse=True)
def keep_logging() -> Iterator[None]:
    root, kopf = logging.getLogger(), logging.getLogger("kopf")
    before = (root.handlers[:], root.level, kopf.handlers[:], kopf.level)
    yield
    root.handlers[:], kopf.handlers[:] = before[0], before[2]
    root.setLevel(before[1])
    kopf.setLevel(before[3])


def test_json_line_has_its_fields_and_the_object() -> None:
    out = io.StringIO()
    setup_logging("json", "INFO", out)
    with about("ns", "demo"):
        logging.getLogger("x.y").warning("it is %s\nindeed", "so")
    logging.getLogger("x").info("later")
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert {key: first[key] for key in ("level", "logger", "message", "object")} == {
        "level": "WARNING",
        "logger": "x.y",
        "message": "it is so\nindeed",
        "object": "ns/demo",
    }
    assert first["time"].endswith("Z")
    assert "object" not in second


def test_json_error_is_one_line() -> None:
    out = io.StringIO()
    setup_logging("json", "INFO", out)
    logging.error("failed", exc_info=ValueError("broken"))
    (line,) = out.getvalue().splitlines()
    assert "ValueError: broken" in json.loads(line)["error"]


def test_text_line() -> None:
    out = io.StringIO()
    setup_logging("text", "DEBUG", out)
    with about("ns", "demo"):
        logging.getLogger("x").info("hello")
    assert out.getvalue().endswith("Z INFO  ns/demo hello\n")


async def test_object_does_not_leak_between_tasks() -> None:
    out = io.StringIO()
    setup_logging("text", "INFO", out)

    async def work(name: str) -> None:
        with about("ns", name):
            await asyncio.sleep(0)
            logging.info("I am %s", name)

    await asyncio.gather(*(work(name) for name in "abc"))
    lines = [line.split()[2:] for line in out.getvalue().splitlines()]
    assert sorted(lines) == [[f"ns/{name}", "I", "am", name] for name in "abc"]


def test_kopf_is_quiet_unless_debugging() -> None:
    out = io.StringIO()
    kopfs_own = io.StringIO()
    logging.getLogger("kopf").addHandler(logging.StreamHandler(kopfs_own))
    setup_logging("text", "INFO", out)
    logging.getLogger("kopf.objects").info("Handler 'x' succeeded.")
    assert out.getvalue() == ""
    logging.getLogger("kopf.objects").warning("watch out")
    assert out.getvalue().count("watch out") == 1
    assert kopfs_own.getvalue() == ""
    setup_logging("text", "DEBUG", out)
    logging.getLogger("kopf.objects").info("Handler 'x' succeeded.")
    assert "succeeded" in out.getvalue()


@pytest.mark.parametrize(
    "secret",
    [
        "Authorization: Bearer abcdef0123456789",
        "authorization: bearer eyJhbGciOi.abc-def.ghi_jkl",
        "token eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJr.c2lnbmF0dXJl",
        "HF_TOKEN=hf_abcdefghijklmnop",
        "key sk-abcdefghij1234567890",
    ],
)
def test_credentials_are_masked_everywhere(secret: str) -> None:
    out = io.StringIO()
    setup_logging("json", "INFO", out)
    logging.info("%s", secret)
    logging.error("with trace", exc_info=ValueError(secret))
    assert "***" in out.getvalue()
    hidden = max(secret.replace("=", " ").split(), key=len)
    assert hidden not in out.getvalue()


def test_ordinary_text_is_not_masked() -> None:
    text = "default/demo-1a2b3c-prefill: applied Deployment; basic checks passed, task-runner sk-1"
    assert mask(text) == text
