"""Reports made from records: figures add up, pages are whole, and nothing that came from outside becomes markup."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4_canary.signatures import CATALOGUE
from dsv4_canary.soak.charts import by_round, over_time, ticks
from dsv4_canary.soak.cli import main
from dsv4_canary.soak.compare import ReportError, compare, comparison_text, read_report
from dsv4_canary.soak.markdown import markdown
from dsv4_canary.soak.page import page
from dsv4_canary.soak.record import Failure, Phase, Record
from dsv4_canary.soak.report import Ending, build
from dsv4_canary.soak.settings import SoakSettings

SETTINGS = SoakSettings(endpoint="http://e:1", tag="arm", model="m", sessions=80, rounds=4)


def records(rate: float, seed: int = 1, *, sessions: int = 80, failed: float = 0.0) -> list[Record]:
    """A synthetic run: that share of sessions has one damaged reply."""
    rng = random.Random(seed)
    made = []
    for phase, count in ((Phase.BASELINE, 8), (Phase.LOAD, sessions)):
        for session in range(count):
            damaged = phase is Phase.LOAD and session < rate * sessions
            at = 1_795_990_000.0 + (200 if phase is Phase.LOAD else 0)
            for number in range(1, 5):
                names = [rng.choice(["S1", "S9", "S15", "S25"])] if damaged and number == 3 else []
                seconds = rng.lognormvariate(1.2, 0.5)
                lost = Failure.TIMEOUT if phase is Phase.LOAD and not names and rng.random() < failed else None
                made.append(
                    Record(
                        phase=phase,
                        session=session,
                        round=number,
                        group="g",
                        stream=(session + number) % 2 == 0,
                        tool="probe_echo",
                        at=at,
                        seconds=seconds,
                        failure=lost,
                        status=200,
                        prompt_tokens=3000 + 400 * number,
                        completion_tokens=60,
                        cached_tokens=2600 if number > 1 else 0,
                        signatures={name: CATALOGUE[name].severity for name in names},
                        excerpt="call probe_echo({})" if names else "",
                    )
                )
                at += seconds
    return made


def built(rate: float, **more: Any) -> dict[str, Any]:
    tag = more.pop("tag", "arm")
    settings = dataclasses.replace(SETTINGS, tag=tag)
    made = build(settings, records(rate, **more), Ending(starts=(1_795_990_000.0,), finished_at=1_795_990_400.0))
    return json.loads(json.dumps(made))  # type: ignore[no-any-return]


def test_figures_add_up() -> None:
    report = built(0.15, failed=0.05)
    load = report["phases"]["load"]
    assert load["recorded"] == 320
    assert load["notDone"] == 0
    assert sum(load["verdicts"].values()) == 320
    assert load["corruptedSessions"]["events"] == 12
    assert load["corruptedSessions"]["trials"] == 80
    assert sum(item["replies"] for item in load["byRound"]) == 320
    assert [item["corrupted"]["events"] for item in load["byRound"]] == [0, 0, 12, 0]
    assert sum(rate["events"] for rate in load["byCache"].values()) == 12
    assert sum(rate["trials"] for rate in load["byStream"].values()) == 320 - load["verdicts"]["failed"]
    assert sum(item["replies"] for item in load["signatures"].values()) == 12
    assert sum(load["histogram"]["counts"]) == 320 - load["failures"]["timeout"]
    in_series = [sum(item[name] for item in report["series"]["bins"]) for name in ("clean", "corrupted", "failed")]
    assert in_series == [load["verdicts"][name] for name in ("clean", "corrupted", "failed")]
    assert report["attribution"]["engine"] == 12
    assert report["verdict"] == "corrupted"
    assert report["sentence"].startswith("12 of 80 sessions corrupted (15.0 %, 95 % interval 8.8 % to 24.4 %)")


def test_time_between_stop_and_resume_does_not_count() -> None:
    items = [item for item in records(0.1) if item.phase is Phase.LOAD]
    late = [dataclasses.replace(item, at=item.at + 86_400) if item.round > 2 else item for item in items]
    starts = (1_795_990_000.0, 1_795_990_000.0 + 86_000)
    load = build(SETTINGS, late, Ending(starts=starts))["phases"]["load"]
    assert load["seconds"] < 100
    assert build(SETTINGS, items, Ending(starts=starts[:1]))["phases"]["load"]["seconds"] < 100
    assert build(SETTINGS, late, Ending(starts=starts[:1]))["phases"]["load"]["seconds"] > 86_000


class Reader(HTMLParser):
    """Checks that tags are balanced, and collects what could load or run something."""

    VOID = frozenset(("meta", "br", "rect", "path"))

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


@pytest.mark.parametrize("rate", [0.0, 0.15, 1.0])
def test_the_page_stands_alone(rate: float) -> None:
    text = page(built(rate, failed=0.05))
    reader = read(text)
    assert not reader.tags & {"script", "link", "img", "iframe", "object", "base", "form"}
    assert not reader.attributes & {"src", "href"}
    assert not any(name.startswith("on") for name in reader.attributes)
    assert "http" not in text.replace("http://e:1", "")
    assert "@import" not in text
    assert "url(" not in text
    charts = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(charts) == (3 if rate == 0 else 4)  # without signatures one is a sentence
    for chart in charts:
        root = ET.fromstring(chart)
        assert root.get("aria-label")
        width, height = map(float, str(root.get("viewBox")).split()[2:])
        for shape in root.iter("rect"):
            x, y, w, h = (float(shape.get(name, "nan")) for name in ("x", "y", "width", "height"))
            assert x >= 0 and y >= 0 and w >= 0 and h >= 0
            assert x + w <= width + 1
            assert y + h <= height


def test_outside_text_is_text() -> None:
    evil = '</title><script>alert(1)</script> | ` "x'
    settings = dataclasses.replace(SETTINGS, model=evil, endpoint="http://e/" + evil)
    items = [
        dataclasses.replace(item, detail=evil, excerpt=evil, failure=Failure.REJECTED if item.session == 1 else None)
        for item in records(0.1)
    ]
    report = build(settings, items, Ending())
    text = page(report)
    assert "&lt;script" in text
    assert "<script" not in text
    read(text)
    notes = markdown(report)
    assert "<script" not in notes.replace("\\<", "")
    for line in notes.splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) in (3, 7, 8), line


def test_no_records_make_a_report_too() -> None:
    report = build(SETTINGS, [], Ending(interrupted=True))
    assert report["verdict"] == "nothing"
    read(page(json.loads(json.dumps(report))))
    assert markdown(report).startswith("# Soak arm: nothing")


def test_notes_name_what_weakens_the_numbers() -> None:
    short = [dataclasses.replace(item, prompt_tokens=900, cached_tokens=None) for item in records(0.0)]
    notes = " ".join(build(SETTINGS, short, Ending())["notes"])
    assert "--shared-ctx" in notes
    assert "--enable-cache-report" in notes
    assert build(SETTINGS, records(0.0), Ending())["notes"] == []


@given(st.floats(1e-6, 1e9), st.booleans())
def test_ticks_reach_the_top(highest: float, whole: bool) -> None:
    marks = ticks(highest, whole=whole)
    assert marks[0] == 0
    assert marks[-1] >= highest * (1 - 1e-6)
    assert 2 <= len(marks) <= 7
    assert all(later > earlier for earlier, later in itertools.pairwise(marks))


def test_empty_charts_say_so() -> None:
    assert "no replies" in over_time({"binSeconds": 0.0, "bins": []})
    assert "no replies" in by_round([])


def test_compare_tells_arms_apart() -> None:
    bad, good = built(0.18, tag="bf16-hicache"), built(0.0, tag="hicache-off")
    result = compare(good, bad)
    assert result["differ"]
    assert result["sentence"].startswith("bf16-hicache corrupts more sessions than hicache-off: 18.8 % against 0 %")
    main_measure = result["measures"][0]
    assert main_measure["pValue"] == pytest.approx(compare(bad, good)["measures"][0]["pValue"])
    assert main_measure["effect"]["difference"] == pytest.approx(0.1875)
    assert main_measure["effect"]["low"] > 0
    assert result["settings"] == {"tag": {"a": "hicache-off", "b": "bf16-hicache"}}
    assert sum(item["b"] for item in result["signatures"]) == 15
    text = comparison_text(result)
    assert "odds ratio" in text
    alike = compare(built(0.02, tag="x"), good)
    assert not alike["differ"]
    assert "No difference is proved" in alike["sentence"]


def test_compare_warns_of_another_load() -> None:
    other = build(dataclasses.replace(SETTINGS, sessions=40), records(0.1, sessions=40), Ending(interrupted=True))
    notes = " ".join(compare(built(0.1), other)["notes"])
    assert "sessions" in notes
    assert "not whole" in notes


def test_compare_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = []
    for name, rate in (("a", 0.0), ("b", 0.18)):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(built(rate, tag=name)))
        paths.append(str(path))
    assert main(["compare", *paths]) == 1
    assert "b corrupts more sessions than a" in capsys.readouterr().out
    assert main(["compare", paths[0], paths[0]]) == 0
    capsys.readouterr()
    assert main(["compare", *paths, "-o", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["differ"] is True


DAMAGES: list[Any] = [
    (lambda raw: raw.update(kind="x"), "kind"),
    (lambda raw: raw.update(version=9), "version"),
    (lambda raw: raw.pop("settings"), "settings"),
    (lambda raw: raw["phases"].pop("load"), "phases.load"),
    (lambda raw: raw["phases"]["load"]["corruptedSessions"].update(events=99), "phases.load"),
    (lambda raw: raw["phases"]["load"]["corruptedSessions"].update(trials="9"), "phases.load"),
    (lambda raw: raw["phases"]["load"].update(signatures=[]), "phases.load"),
]


@pytest.mark.parametrize(("damage", "named"), DAMAGES)
def test_a_damaged_report_is_named_in_one_line(tmp_path: Path, damage: Any, named: str) -> None:
    raw = built(0.1)
    damage(raw)
    path = tmp_path / "a.json"
    path.write_text(json.dumps(raw))
    with pytest.raises(ReportError, match=named) as caught:
        read_report(path)
    assert "\n" not in str(caught.value)
