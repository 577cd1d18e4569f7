"""The gated image's plugin as the simulator plays it: outcomes of replies, and the series."""

import json

import aiohttp
import pytest

from dsv4_engine_sim import guard

ECHO = {
    "name": "probe_echo",
    "parameters": {
        "type": "object",
        "properties": {
            "token": {"type": "string"},
            "n": {"type": "integer"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "kind": {"enum": ["a", "b"]},
        },
        "required": ["token", "n"],
    },
}
RIGHT = json.dumps({"token": "x", "n": 7})


@pytest.mark.parametrize(
    ("content", "calls", "outcome"),
    [
        ("", [("probe_echo", RIGHT)], "valid"),
        ("plain words", [], "none"),
        ("", [("probe_echo", RIGHT), ("probe_echo", '{"token": ')], "invalid_json"),
        ("", [("probe_oche", RIGHT)], "unknown_tool"),
        ("", [("probe_oche", "{")], "invalid_json"),
        ("", [("probe_echo", '{"token": "x"}')], "schema"),
        ("", [("probe_echo", '{"token": "x", "n": "7"}')], "schema"),
        ("", [("probe_echo", '{"token": "x", "n": true}')], "schema"),
        ("", [("probe_echo", '{"token": "x", "n": 7, "tags": ["y", 1]}')], "schema"),
        ("", [("probe_echo", '{"token": "x", "n": 7, "kind": "c"}')], "schema"),
        ("", [("probe_echo", "[1]")], "schema"),
        ('<｜DSML｜invoke name="probe_echo">', [("probe_echo", RIGHT)], "leaked"),
        ("so " + "and on and " * 20, [], "loop"),
        ("and on and " * 20 + "<｜DSML｜", [], "leaked"),
        ("=" * 12, [], "none"),
    ],
)
def test_the_worst_outcome_wins(content, calls, outcome):
    assert guard.judge(content, calls, [ECHO]) == outcome


def series(sim):
    return {name: value for name, value in sim.metrics().items() if name.startswith("dsv4_guard")}


@pytest.mark.processes
async def test_series_count_the_replies_that_decode_sends(start, pair):
    env = {"DSV4_SIM_GUARD": "1", "SGLANG_PLUGINS": "dsv4_guard", "DSV4_INDEX_K_DTYPE": "bf16"}
    guarded = type(pair)(start("prefill", **env), start("decode", **env))
    ask = 'Call the tool probe_echo exactly once with token "zk-41" and n 7.'
    await guarded.post(guarded.body(ask))
    await guarded.post(guarded.body(ask, stream=True))
    await guarded.post(guarded.body("hello"))
    await guarded.post(guarded.body("hello", tools=None))
    await guarded.post(guarded.body(ask, max_tokens=25))  # cut off inside the call
    found = series(guarded.decode)
    calls = {name: value for name, value in found.items() if "tool_calls" in name and value}
    assert calls.pop('dsv4_guard_tool_calls_total{cache="cold",outcome="valid"}') == 2
    assert calls.pop('dsv4_guard_tool_calls_total{cache="cold",outcome="none"}') == 1
    assert sum(calls.values()) == 1, calls
    assert found["dsv4_guard_request_seconds_count"] == 5
    for process in ("api", "scheduler"):
        labels = f'index_k="bf16",process="{process}",release="0.5.23",version="simulated"'
        assert found[f"dsv4_guard_info{{{labels}}}"] == 1
    assert not [name for name, value in series(guarded.prefill).items() if "tool_calls" in name and value]
    assert series(pair.decode) == series(pair.prefill) == {}
    async with aiohttp.ClientSession() as session, session.get(guarded.decode.url + "/server_info") as response:
        assert (await response.json())["simulator"]["index_k_dtype"] == "bf16"
