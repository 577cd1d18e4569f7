"""What the data says of each release, and how words are matched against it as argparse would."""

from __future__ import annotations

import argparse

import pytest

from dsv4_operator.engine import wheel
from dsv4_operator.engine.releases import DEFAULT_RELEASE, KNOWN_RELEASES, Release, ReleaseRange, range_of
from dsv4_operator.engine.wheel import FlagKind, WheelFlag, env_defaults, env_names, env_table, find_flag, flag_table

OLDEST = KNOWN_RELEASES["0.5.12"]
EVERY = list(KNOWN_RELEASES.values())


def test_data_and_releases_agree() -> None:
    assert wheel.data_releases() == list(KNOWN_RELEASES)


@pytest.mark.parametrize("release", EVERY, ids=str)
def test_tables_hold_together(release: Release) -> None:
    table = flag_table(release)
    assert len(table) >= 400
    for spelling, flag in table.items():
        assert spelling in flag.spellings or spelling.removeprefix("--no-") in {s[2:] for s in flag.spellings}
        assert flag.dest
        assert flag.choices is None or flag.choices
    negated = [f"--no-{s[2:]}" for f in wheel.flags(release) if f.kind is FlagKind.OPTIONAL_SWITCH for s in f.spellings]
    assert sum(len(flag.spellings) for flag in wheel.flags(release)) == len(set(table) - set(negated))
    assert len(env_names(release)) >= 350


def test_unknown_release() -> None:
    with pytest.raises(KeyError, match=r"0\.4\.0"):
        flag_table(Release((0, 4, 0)))
    with pytest.raises(KeyError):
        env_table(Release((0, 4, 0)))


def argparse_of(release: Release) -> argparse.ArgumentParser:
    """A parser with every flag of the release; negated spellings come from argparse itself."""
    parser = argparse.ArgumentParser(exit_on_error=False, add_help=False)
    for flag in wheel.flags(release):
        if flag.kind is FlagKind.OPTIONAL_SWITCH:
            parser.add_argument(*flag.spellings, dest=flag.name, action=argparse.BooleanOptionalAction)
        elif not flag.takes_value:
            parser.add_argument(*flag.spellings, dest=flag.name, action="store_true")
        else:
            parser.add_argument(*flag.spellings, dest=flag.name)
    return parser


def test_matching_is_that_of_argparse() -> None:
    """Every prefix of every spelling of a release, against argparse itself."""
    parser = argparse_of(DEFAULT_RELEASE)
    words = {
        name[:end] for name in list(flag_table(DEFAULT_RELEASE))[::7] for end in range(3, len(name) + 1)
    } | {"--no-such-flag"}  # fmt: skip
    for word in sorted(words):
        match = find_flag(DEFAULT_RELEASE, word)
        matched = parser._get_option_tuples(word) if word not in parser._option_string_actions else [
            (parser._option_string_actions[word], word)
        ]  # fmt: skip
        assert {option[1] for option in matched} == set(match.candidates), word
        assert match.exact is (word in parser._option_string_actions)
        if len(matched) == 1:
            assert match.flag is not None
            assert match.flag.name == matched[0][0].dest
        else:
            assert match.flag is None


@pytest.mark.parametrize(
    ("word", "name", "exact"),
    [
        ("--tp", "--tp-size", False),
        ("--tp-size=8", "--tp-size", True),
        ("--dp=8", "--dp-size", False),
        ("--hicache-rat=3", "--hicache-ratio", False),
        ("--cuda-graph-max-bs", None, False),
        ("-h", None, False),
        ("--", None, False),
        ("8", None, False),
        ("", None, False),
    ],
)
def test_words(word: str, name: str | None, exact: bool) -> None:
    match = find_flag(DEFAULT_RELEASE, word)
    assert (match.flag.name if match.flag else None, match.exact) == (name, exact)


@pytest.mark.parametrize(
    ("flag", "value", "accepted"),
    [
        (WheelFlag("--a", FlagKind.INT), "8", True),
        (WheelFlag("--a", FlagKind.INT), "8.5", False),
        (WheelFlag("--a", FlagKind.FLOAT), "8.5", True),
        (WheelFlag("--a", FlagKind.FLOAT), "x", False),
        (WheelFlag("--a", FlagKind.STR), "x", True),
        (WheelFlag("--a", FlagKind.STR, choices=("x",)), "y", False),
        (WheelFlag("--a", FlagKind.INT, choices=(1, 2)), "2", True),
        (WheelFlag("--a", FlagKind.INT, choices=(1, 2)), "3", False),
        (WheelFlag("--a", FlagKind.SWITCH), "x", False),
        (WheelFlag("--a", FlagKind.RETIRED), "x", False),
    ],
)
def test_values(flag: WheelFlag, value: str, accepted: bool) -> None:
    assert flag.accepts(value) is accepted


@pytest.mark.parametrize(
    ("name", "releases"),
    [
        ("--attn-dp-size", "0.5.22 and later"),
        ("--dp-size", "all"),
        ("--cuda-graph-max-bs", "up to 0.5.19"),
        ("--enable-deepseek-v4-fp4-indexer", "0.5.13 and later"),
        ("--disaggregation-enable-kv-checksum", "0.5.21 and later"),
        ("--speculative-dspark-block-size", "0.5.16 and later"),
        ("--optimistic-prefill-retries", "0.5.13 to 0.5.15"),
        ("--optimistic-prefill-attempts", "0.5.16 and later"),
        ("--no-such-flag", "None"),
    ],
)
def test_ranges_of_flags(name: str, releases: str) -> None:
    assert str(wheel.releases_with_flag(name)) == releases


@pytest.mark.parametrize(
    ("name", "releases"),
    [
        ("SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX", "0.5.15 and later"),
        ("SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE", "0.5.19 and later"),
        ("SGLANG_ENABLE_UNIFIED_RADIX_TREE", "up to 0.5.20"),
        ("SGLANG_HOST_IP", "all"),
        ("SGLANG_NO_SUCH", "None"),
    ],
)
def test_ranges_of_variables(name: str, releases: str) -> None:
    assert str(wheel.releases_with_env(name)) == releases


def test_defaults_that_rules_rely_on() -> None:
    """The facts of early read-done, deferred release and early send, release by release."""
    deferred = "SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE"
    assert [env_defaults(r).get(deferred) for r in EVERY] == [None] * 7 + [False] * 2 + [True] * 3
    read_done = "SGLANG_ENABLE_PREFILL_WAR_READ_DONE"
    assert [env_defaults(r).get(read_done) for r in EVERY] == [None] * 6 + [False] * 5 + [True]
    early = "SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX"
    assert [env_defaults(r).get(early) for r in EVERY] == [None] * 3 + [True] * 9
    assert env_table(KNOWN_RELEASES["0.5.21"])["SGLANG_ENABLE_UNIFIED_RADIX_TREE"].retired


def test_release_ranges() -> None:
    whole, middle = ReleaseRange(), ReleaseRange.of("0.5.15", "0.5.22")
    assert [str(r) for r in middle.known()][::7] == ["0.5.15", "0.5.22"]
    assert (str(whole), str(middle), str(ReleaseRange.of("0.5.18")), str(ReleaseRange.of(None, "0.5.17"))) == (
        "all", "0.5.15 to 0.5.22", "0.5.18 and later", "up to 0.5.17",
    )  # fmt: skip
    assert str(ReleaseRange.of("0.5.21", "0.5.21")) == "0.5.21"
    assert Release((0, 5, 24)) in ReleaseRange.of("0.5.18")
    assert Release((0, 5, 24)) not in middle
    assert range_of([]) is None
    assert range_of(EVERY) == whole
    assert range_of(EVERY[3:5]) == ReleaseRange(EVERY[3], EVERY[4])


@pytest.mark.parametrize("text", ["0.5", "v0.5.23", "0.5.23rc1", "", "0.5.23.4", "a.b.c"])
def test_text_that_is_no_release(text: str) -> None:
    with pytest.raises(ValueError, match="not a SGLang release"):
        Release.parse(text)


def test_parsed_releases() -> None:
    assert Release.parse("0.5.23.post1") is DEFAULT_RELEASE
    assert Release.parse("0.6.0") > DEFAULT_RELEASE
    assert Release((0, 5, 23)) == DEFAULT_RELEASE, "how readiness is asked is no part of a release's identity"
    assert KNOWN_RELEASES["0.5.19"].ready_endpoint == "/health"
