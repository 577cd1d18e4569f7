"""Output handling before 0.5.23. Expected values were read off upstream's detector source."""

import json

import pytest

from dsv4_engine_sim import tokens
from dsv4_engine_sim.detector import TextParser, detect

M = "｜DSML｜"
GOOD = (
    f'\n\n<{M}tool_calls>\n<{M}invoke name="echo">\n<{M}parameter name="token" string="true"> zk-41 </{M}parameter>\n'
    f'<{M}parameter name="n" string="false">7</{M}parameter>\n</{M}invoke>\n</{M}tool_calls>'
)
CALL = [("echo", {"token": "zk-41", "n": 7})]


def found(text, era, stream=False):
    content, calls = detect(text, ["echo"], era=era, stream=stream)
    return content, [(name, json.loads(arguments)) for name, arguments in calls]


@pytest.mark.parametrize("era", ["leak", "silent"])
def test_a_good_call_is_parsed(era):
    assert found("Prose." + GOOD, era) == ("Prose.", CALL)
    assert found(GOOD.replace(">7<", "><"), era)[1] == [("echo", {"token": "zk-41", "n": ""})]
    assert found(GOOD.replace('"echo"', '"ech"'), era) == ("", []), "not offered: dropped"


def test_misspelt_block_leaks_up_to_0_5_20_and_its_invokes_are_parsed_after():
    text = GOOD.replace("tool_calls", "tool_cals")
    assert found(text, "leak") == (text, [])
    assert found(text, "silent") == ("", CALL)


def test_misspelt_parameter_loses_the_argument_then_and_the_call_later():
    text = GOOD.replace(f'<{M}parameter name="n"', f'<{M}paramter name="n"')
    assert found(text, "leak") == ("", [("echo", {"token": "zk-41"})])
    assert found(text, "silent") == ("", [])


def test_unreadable_json_body_leaks_then_vanishes():
    text = f'Hm.\n\n<{M}tool_calls>\n<{M}invoke name="echo">\n{{"n": 7,}}\n</{M}invoke>\n</{M}tool_calls>'
    assert found(text, "leak") == (text, [])
    assert found(text, "silent") == ("Hm.", [])


@pytest.mark.parametrize("era", ["leak", "silent"])
def test_a_block_that_never_closes_is_dropped(era):
    assert found("Hm." + GOOD.removesuffix(f"</{M}tool_calls>"), era) == ("Hm.", [])


def test_without_any_tag_that_is_known_a_stream_stays_silent_and_a_whole_reply_leaks():
    text = f"Hm.\n\n<{M}tool_cals>\n<{M}invok>"
    assert found(text, "silent") == (text, [])
    assert found(text, "silent", stream=True) == ("Hm.", [])


@pytest.mark.parametrize("step", [1, 5, 1000])
@pytest.mark.parametrize("era", ["leak", "silent"])
def test_pieces_do_not_matter_and_prose_comes_at_once(era, step):
    text = tokens.parse_specials(f"Think a < b.</think>\n\nSome prose, 1 > 0.{GOOD}")
    parser = TextParser(era=era, thinking=True, tools=["echo"], stream=True)
    deltas = [parser.feed(text[start : start + step]) for start in range(0, len(text), step)]
    deltas.append(parser.finish())
    assert "".join(delta.reasoning for delta in deltas) == "Think a < b."
    assert "".join(delta.content for delta in deltas) == "Some prose, 1 > 0."
    assert deltas[-1].content == ""
    (call,) = [call for delta in deltas for call in delta.calls]
    assert (call.name, json.loads(call.arguments)) == CALL[0]


def test_without_tools_everything_is_text():
    parser = TextParser(era="leak", thinking=False, tools=[], stream=False)
    assert parser.feed(tokens.parse_specials(GOOD)).content + parser.finish().content == GOOD.lstrip("\n")
