"""docs/policy.md and the data that it is made of."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dsv4_operator.policy import RULES, Action, Rule
from dsv4_operator.policy.reference import main, markdown

DOCUMENT = Path(__file__).parents[3] / "docs" / "policy.md"
SOURCE = re.compile(
    r"this operator"
    r"|(sglang \d\.\d\.\d+( to \d\.\d\.\d+)?(,? (srt|all wheels)[\w/. ]*(\.py)?( \([^)]+\))?)+"
    r"|[\w.-]+/[\w.-]+ (PR )?#\d+(, (PR )?#\d+)*)"
    r"(, (sglang \d\.\d\.\d+( to \d\.\d\.\d+)? srt/[\w/. ]*( \([^)]+\))?|[\w.-]+/[\w.-]+ (PR )?#\d+(, (PR )?#\d+)*))*"
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_rule_is_complete(rule: Rule) -> None:
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])", rule.id)
    assert SOURCE.fullmatch(rule.source), rule.source
    assert rule.title[-1] != "."
    assert rule.explanation[-1] == "."
    assert len(rule.explanation) > 50
    assert "  " not in rule.explanation
    assert re.search(r"[,;:][A-Za-z]", rule.explanation) is None, "a space is missing"
    if rule.action is not Action.REFUSE:
        assert rule.allowable


def test_document_is_current() -> None:
    assert DOCUMENT.read_text() == markdown()


def test_check_tells_a_stale_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "policy.md"
    assert main(["--out", str(copy)]) == 0
    assert main(["--out", str(copy), "--check"]) == 0
    copy.write_text(copy.read_text().replace("early-send", "early-sent"))
    assert main(["--out", str(copy), "--check"]) == 1
    assert "early-sent" in capsys.readouterr().out


def test_document_has_every_rule_with_links() -> None:
    text = markdown()
    for rule in RULES:
        assert f"\n### {rule.id}\n" in text
        assert f"| [`{rule.id}`](#{rule.id}) | {rule.releases} | {rule.action.value} |" in text
    assert "[#44070](https://github.com/sgl-project/sglang/issues/44070)" in text
    assert "[PR #39417](https://github.com/sgl-project/sglang/pull/39417)" in text
