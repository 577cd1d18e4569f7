"""Logs: one line of JSON per record for machines, or one line of text for people; to stderr.

A context variable carries the object that a pass is about, so every line of a pass names it. Bearer tokens
and the like are masked as a last resort; code does not log them to begin with.
"""

from __future__ import annotations

import contextlib
import contextvars
import json
import logging
import re
import sys
import time
from collections.abc import Iterator
from typing import Final, Literal, TextIO

LogFormat = Literal["json", "text"]

_OBJECT: contextvars.ContextVar[str] = contextvars.ContextVar("dsv4_operator_object", default="")

# Authorization values, Hugging Face and OpenAI-style tokens, service-account tokens (JWT).
_SECRET: Final = re.compile(
    r"(?i:(?<=bearer )|(?<=basic ))[A-Za-z0-9._~+/=-]{8,}"
    r"|\bhf_[A-Za-z0-9]{8,}|\bsk-[A-Za-z0-9_-]{8,}|\beyJ[\w-]+\.[\w-]+\.[\w-]+"
)
# kopf logs each handled event at INFO, aiohttp each request: with 8,000 objects that is all one would see.
_QUIET: Final = {"kopf": logging.WARNING, "aiohttp.access": logging.WARNING, "asyncio": logging.WARNING}
_COLUMNS: Final = {
    "DEBUG": "DEBUG",
    "INFO": "INFO ",
    "WARNING": "WARN ",
    "ERROR": "ERROR",
    "CRITICAL": "FATAL",
}


@contextlib.contextmanager
def about(namespace: str, name: str) -> Iterator[None]:
    """Within this block, and in what it awaits, log lines name the object."""
    token = _OBJECT.set(f"{namespace}/{name}")
    try:
        yield
    finally:
        _OBJECT.reset(token)


def setup_logging(log_format: LogFormat, level: str, stream: TextIO | None = None) -> None:
    """Send all logging to one handler on stderr (or `stream`). `level` is a name such as INFO. Call once at
    start.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    debug = root.level <= logging.DEBUG
    for name, quiet_level in _QUIET.items():
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.INFO if debug else quiet_level)


def mask(text: str) -> str:
    """The text with everything that looks like a credential replaced."""
    return _SECRET.sub("***", text)


class JsonFormatter(logging.Formatter):
    """One JSON object per record: time (RFC 3339, UTC), level, logger, message, object, error."""

    def format(self, record: logging.LogRecord) -> str:
        """See the class."""
        line: dict[str, str] = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": mask(record.getMessage()),
        }
        if _OBJECT.get():
            line["object"] = _OBJECT.get()
        trace = _trace(self, record)
        if trace:
            line["error"] = trace
        return json.dumps(line, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000Z INFO  namespace/name message`, a traceback below."""

    def format(self, record: logging.LogRecord) -> str:
        """See the class."""
        where = f"{_OBJECT.get()} " if _OBJECT.get() else ""
        level = _COLUMNS.get(record.levelname, record.levelname)
        line = f"{_time(record)} {level} {where}{mask(record.getMessage())}"
        trace = _trace(self, record)
        return f"{line}\n{trace}" if trace else line


def _time(record: logging.LogRecord) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{whole}.{int(record.msecs):03d}Z"


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = []
    if record.exc_info:
        parts.append(formatter.formatException(record.exc_info))
    if record.stack_info:
        parts.append(record.stack_info)
    return mask("\n".join(parts))
