"""Records and the journal: round trips, kills, and lines that are none."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4_canary.model import Severity
from dsv4_canary.signatures import CATALOGUE
from dsv4_canary.soak.job import Job, run_job
from dsv4_canary.soak.journal import Journal, JournalError, read_journal
from dsv4_canary.soak.record import Failure, Phase, Record, RecordError, Verdict, from_json

HEADER = {"tag": "t"}


def record(session: int = 0, number: int = 1, **more: object) -> Record:
    values = {"phase": Phase.LOAD, "group": "l0", "stream": True, "tool": "probe_echo", "at": 10.0, "seconds": 0.5}
    return Record(session=session, round=number, **(values | more))  # type: ignore[arg-type]


RECORDS = st.builds(
    Record,
    phase=st.sampled_from(Phase),
    session=st.integers(0, 9999),
    round=st.integers(1, 100),
    group=st.text(min_size=1, max_size=5),
    stream=st.booleans(),
    tool=st.text(min_size=1, max_size=5),
    at=st.integers(0, 2**33).map(float),
    seconds=st.integers(0, 10_000).map(lambda n: n / 16),
    failure=st.none() | st.sampled_from(Failure),
    status=st.none() | st.integers(100, 599),
    detail=st.text(max_size=20),
    first_byte=st.none() | st.integers(1, 99).map(float),
    finish=st.none() | st.text(min_size=1, max_size=8),
    prompt_tokens=st.none() | st.integers(0, 10**6),
    completion_tokens=st.none() | st.integers(0, 10**6),
    cached_tokens=st.none() | st.integers(0, 10**6),
    signatures=st.dictionaries(st.sampled_from(sorted(CATALOGUE)), st.sampled_from(Severity), max_size=4),
    excerpt=st.text(max_size=20),
)


@given(RECORDS)
def test_a_record_survives_its_line(item: Record) -> None:
    assert from_json(json.loads(json.dumps(item.to_json()))) == item


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.dictionaries(
                st.sampled_from(["phase", "session", "round", "signatures", "failure", "at"]) | st.text(max_size=3),
                inner,
            )
            | st.lists(inner)
        ),
    )
)
def test_no_line_breaks_the_reader(line: object) -> None:
    try:
        from_json(line)
    except RecordError as error:
        assert "\n" not in str(error)


def test_verdicts() -> None:
    assert record().verdict is Verdict.CLEAN
    assert record(signatures={"S13": Severity.CONTRACT}).verdict is Verdict.CLEAN
    assert record(signatures={"S11": Severity.BUDGET}).verdict is Verdict.BUDGET
    assert record(signatures={"S11": Severity.BUDGET, "S15": Severity.CORRUPTION}).verdict is Verdict.CORRUPTED
    assert record(failure=Failure.CUT).verdict is Verdict.FAILED
    assert record(failure=Failure.CUT, signatures={"S25": Severity.CORRUPTION}).verdict is Verdict.CORRUPTED


async def test_lines_reach_the_disk_while_the_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    journal = Journal(path, HEADER, 5.0, resume_at=None)
    writer = asyncio.create_task(journal.write_groups())
    for number in range(1, 101):
        journal.add(record(number=number))
    async with asyncio.timeout(20):
        while len(read_journal(path).records) < 100:
            await asyncio.sleep(0.01)
    writer.cancel()
    await asyncio.gather(writer, return_exceptions=True)
    journal.add(record(1))
    await journal.close()
    held = read_journal(path)
    assert len(held.records) == 101
    assert held.starts == (5.0,)
    assert held.header == HEADER


async def test_a_torn_line_is_dropped_and_the_run_goes_on_behind_the_whole_ones(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    journal = Journal(path, HEADER, 5.0, resume_at=None)
    journal.add(record(0, 1))
    await journal.close()
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"verdict": "clean", "phase": "lo' + 4000 * b"x")
    held = read_journal(path)
    assert (len(held.records), held.length) == (1, len(whole))
    journal = Journal(path, HEADER, 9.0, resume_at=held.length)
    journal.add(record(0, 2))
    # The first word on a (session, round) stands.
    journal.add(record(0, 1, failure=Failure.CUT))
    await journal.close()
    held = read_journal(path)
    assert held.starts == (5.0, 9.0)
    assert path.read_bytes().endswith(b"}\n")
    assert [item.failure for item in held.records.values()] == [None, None]


async def test_a_full_disk_ends_the_run(
    endpoint: Any, job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real, calls = os.fsync, []

    def fsync(handle: int) -> None:
        calls.append(handle)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    async def behaviour(_request: object, _body: object, number: int) -> None:
        if number == 3:
            await asyncio.Event().wait()

    endpoint.behaviour = behaviour
    monkeypatch.setattr("dsv4_canary.soak.journal.os.fsync", fsync)
    async with asyncio.timeout(20):
        with pytest.raises(OSError, match="No space"):
            await run_job(job(endpoint.url, timeout=60.0))


async def test_no_run_overwrites_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("precious\n")
    with pytest.raises(FileExistsError):
        Journal(path, HEADER, 5.0, resume_at=None)
    assert path.read_text() == "precious\n"


START = '{"soak": 1, "settings": {}}\n'


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "header"),
        ("not json\n", "line 1"),
        ('{"phase": "load"}\n', "line 1"),
        ('{"soak": 2, "settings": {}}\n', "soak = 2"),
        ('{"soak": 1}\n', "settings"),
        (START + "[]\n", "line 2"),
        (START + json.dumps(record().to_json() | {"round": "1"}) + "\n", "round"),
        (START + json.dumps(record().to_json() | {"signatures": {"S99": "corruption"}}) + "\n", "signatures"),
        (START + json.dumps(record().to_json() | {"failure": "bored"}) + "\n", "bored"),
    ],
)
def test_a_bad_journal_is_named_in_one_line(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with pytest.raises(JournalError, match=named) as caught:
        read_journal(path)
    assert "\n" not in str(caught.value)
