"""What the sessions say: the whole plan of a soak from its settings. Pure; the same settings give the same bytes.

A session is an agent at work. Round 1 is a system message, the prefix that its group shares, notes of its own, and a
request for one tool call. Every further round adds the call that was right, a tool result with new context, and the
next request. The history holds the right calls, whatever came back: a round then measures the engine and not the
model's recovery from earlier damage, prompts do not depend on replies, and a run can be resumed.

Groups of sessions share a prefix, so that it is reused while others are written. Every fourth group shares nothing:
its sessions fill the cache and push the shared prefixes out.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dsv4_canary.expect import Expectation
from dsv4_canary.probes import filler
from dsv4_canary.soak.settings import SoakSettings, Stream, Thinking
from dsv4_canary.soak.tools import DEFINITIONS, NAMES, Task, fresh_nonce, task

_SYSTEM = (
    "Workspace {key}. You are an agent that works with tools. Follow the last message of the user exactly. Values in "
    "double quotes or backquotes are JSON: pass what they mean, unchanged."
)

_NEAR = 250
"""Sessions on either side whose values are looked for in a reply; they are the ones that run at the same time."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a session and the answer it must bring."""

    session: int
    round: int
    """From 1."""
    group: str
    stream: bool
    task: Task
    body: dict[str, Any]
    expectation: Expectation


class Script:
    """All sessions of one phase. ``phase``: ``load`` or ``baseline``; phases share no text but the tools."""

    def __init__(self, settings: SoakSettings, phase: str, sessions: int) -> None:
        self._settings = settings
        self._phase = phase
        self.sessions = sessions
        rng = random.Random(f"dsv4-soak/{settings.seed}/{phase}/nonces")  # noqa: S311 - must be reproducible
        taken: set[str] = set()
        self._tasks: list[list[Task]] = []
        for session in range(sessions):
            offset = rng.randrange(len(NAMES))
            tasks = []
            for number in range(settings.rounds):
                nonce = fresh_nonce(rng)
                while nonce in taken:
                    nonce = fresh_nonce(rng)
                taken.add(nonce)
                # Every session walks through the tools, from its own start.
                tool = NAMES[(offset + number * 3 + session) % len(NAMES)]
                tasks.append(task(tool, random.Random(f"{settings.seed}/{nonce}"), nonce))  # noqa: S311
            self._tasks.append(tasks)

    def group(self, session: int) -> str:
        """Name of the prefix of a session."""
        number = session // self._settings.share
        return f"{self._phase[0]}{number}-{session}" if number % 4 == 3 else f"{self._phase[0]}{number}"

    def request(self, session: int, number: int, *, salt: str = "") -> Request:
        """Round ``number`` (from 1) of a session. ``salt`` makes the prefix one that no cache holds."""
        settings, group = self._settings, self.group(session)
        key = f"{settings.seed}-{group}{salt}"
        shared = _words(key, settings.shared_ctx)
        own = f"{settings.seed}-{self._phase}-{session}"
        context = [_words(f"{own}-{n}", settings.ctx) for n in range(1, number + 1)]
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": _SYSTEM.format(key=key)},
            {
                "role": "user",
                "content": _join("Shared notes.", shared, "Own notes.", context[0], self._ask(session, 1)),
            },
        ]
        for done in range(1, number):
            past, call_id = self._tasks[session][done - 1], f"call_{session:05d}_{done:03d}"
            arguments = json.dumps(dict(past.arguments), ensure_ascii=False)
            call = {"id": call_id, "type": "function", "function": {"name": past.tool, "arguments": arguments}}
            messages += [
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": call_id, "content": _join("Done.", context[done])},
                {"role": "user", "content": self._ask(session, done + 1)},
            ]
        stream = self._streams(session, number)
        body: dict[str, Any] = {
            "model": settings.model,
            "messages": messages,
            "tools": DEFINITIONS,
            # A required or named choice uses a grammar, which hides damage.
            "tool_choice": "auto",
            "temperature": 0,
            "max_tokens": settings.max_tokens,
            "stream": stream,
        }
        if stream:
            body["stream_options"] = {"include_usage": True}
        if settings.thinking is not Thinking.SERVER:
            body["chat_template_kwargs"] = {"thinking": settings.thinking is Thinking.ON}
        wanted = self._tasks[session][number - 1]
        expectation = Expectation(
            mode="call",
            tool=wanted.tool,
            arguments=wanted.arguments,
            nonces=self._nonces_of_others(session),
            prompt=" ".join((shared, *context)),
        )
        return Request(session, number, group, stream, wanted, body, expectation)

    def footprint_words(self) -> int:
        """Words of all distinct prefixes at the end of the phase, tools and requests left out."""
        groups = {self.group(session) for session in range(self.sessions)}
        return len(groups) * self._settings.shared_ctx + self.sessions * self._settings.rounds * self._settings.ctx

    def _ask(self, session: int, number: int) -> str:
        return self._tasks[session][number - 1].request

    def _streams(self, session: int, number: int) -> bool:
        if self._settings.stream is Stream.MIX:
            return (session + number) % 2 == 0
        return self._settings.stream is Stream.ALWAYS

    def _nonces_of_others(self, session: int) -> tuple[str, ...]:
        # Own earlier values stand in the history; to repeat one is no mix-up of requests.
        near = range(max(0, session - _NEAR), min(self.sessions, session + _NEAR + 1))
        return tuple(item.nonce for other in near if other != session for item in self._tasks[other] if item.nonce)


@lru_cache(maxsize=512)
def _words(key: str, count: int) -> str:
    """Exactly ``count`` words of text; a word is at least one token of any byte-pair tokenizer."""
    return " ".join(filler(key, count).split()[:count]) if count else ""


def _join(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part)
