"""The committed data against the wheels themselves, parsed and never imported; and every rendered name in them."""

from __future__ import annotations

import re
import zipfile
from functools import cache
from typing import Any

import pytest
from history import load, read_wheel
from matrix import spec_of, specs
from refusals import SOURCE
from wheels import wheel

from dsv4_operator.api.constants import ENGINE_ROLES, Role
from dsv4_operator.engine.command import render_command
from dsv4_operator.engine.facts import HANDSHAKE
from dsv4_operator.engine.flags import OWNED_ENV, OWNED_FLAGS
from dsv4_operator.engine.releases import KNOWN_RELEASES, Release
from dsv4_operator.engine.renames import RENAMES
from dsv4_operator.engine.rendered import RENDERED_ENV, RENDERED_FLAGS

RELEASES = list(KNOWN_RELEASES)


@cache
def extracted(release: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return read_wheel(wheel(release))


@cache
def spellings(release: str) -> frozenset[str]:
    table = extracted(release)[0]
    return frozenset(name for first, flag in table.items() for name in (first, *flag.get("aliases", ())))


@cache
def source(release: str, path: str) -> str:
    with zipfile.ZipFile(wheel(release)) as archive:
        return re.sub(r"\s+", " ", archive.read(path).decode())


@pytest.mark.parametrize("release", RELEASES)
def test_data_is_current(release: str) -> None:
    flags, env = extracted(release)
    assert load("flags")[release] == flags
    assert load("env")[release] == env


@pytest.mark.parametrize("release", RELEASES)
def test_every_rendered_flag_and_variable_exists(release: str) -> None:
    """The whole matrix for both roles: only spellings of the release, and only variables that it reads."""
    unknown = set()
    env = extracted(release)[1]
    for patch in specs().values():
        for role in ENGINE_ROLES:
            command = render_command(spec_of(patch), Release.parse(release), Role(role))
            words = {word.split("=")[0] for word in command.argv if word.startswith("--")}
            unknown |= words - spellings(release)
            names = {entry.name for entry in command.env if entry.name.startswith("SGLANG_")}
            unknown |= {name for name in names if name not in env or env[name].get("retired")}
    assert not unknown


def test_an_invented_flag_would_be_seen() -> None:
    assert "--attn-dp-size" not in spellings("0.5.21")
    assert "--attn-dp-size" in spellings("0.5.22")
    assert "--no-such-flag" not in spellings("0.5.23")


def test_ranges_of_what_is_rendered() -> None:
    """No range is wider than the wheels': where a name is rendered, it is there."""
    for entry in RENDERED_FLAGS.values():
        assert [r for r in entry.releases.known() if entry.name not in spellings(str(r))] == [], entry.name
    for entry in RENDERED_ENV.values():
        tables = {release: extracted(str(release))[1] for release in entry.releases.known()}
        missing = [release for release, env in tables.items() if env.get(entry.name, {"retired": True}).get("retired")]
        assert missing == [], entry.name


def test_owned_names_are_of_some_release() -> None:
    every = frozenset().union(*(spellings(release) for release in RELEASES))
    variables = frozenset().union(*(extracted(release)[1] for release in RELEASES))
    assert {flag.name for flag in OWNED_FLAGS} <= every
    assert {name for name in OWNED_ENV if name.startswith("SGLANG_")} <= variables


@pytest.mark.parametrize("rename", RENAMES, ids=[f"{r.old} {r.new}" for r in RENAMES])
def test_renames(rename: Any) -> None:
    """The new name comes with `since`, not earlier; the old one goes with `gone`, not earlier."""
    new = rename.new.split("=")[0]
    for release in KNOWN_RELEASES.values():
        if release < rename.since:
            assert new not in spellings(str(release))
        if rename.gone is not None:
            assert (rename.old in spellings(str(release))) <= (release < rename.gone)
    assert new in spellings(str(rename.since))
    last_with_old = max(r for r in KNOWN_RELEASES.values() if rename.old in spellings(str(r)))
    assert rename.gone is None or last_with_old < rename.gone


CONN = "sglang/srt/disaggregation/common/conn.py"


@pytest.mark.parametrize("release", RELEASES)
def test_handshake(release: str) -> None:
    """What is compared refuses with these words from its first release on, and not before."""
    for check in HANDSHAKE:
        if check.refusal is not None:
            assert check.checked is not None
            assert (check.refusal in source(release, CONN)) is (Release.parse(release) in check.checked), check.what
        else:
            assert check.checked is None


@pytest.mark.parametrize("release", RELEASES)
def test_ready_route(release: str) -> None:
    has = '@app.get("/ready")' in source(release, "sglang/srt/entrypoints/http_server.py")
    assert (KNOWN_RELEASES[release].ready_endpoint == "/ready") is has


@pytest.mark.parametrize("case", SOURCE, ids=[f"{case.name}: {case.releases}" for case in SOURCE])
def test_refusals_in_the_source(case: Any) -> None:
    """What is raised only after weights were loaded: the check stands in every wheel it is claimed for."""
    for release in case.releases.known():
        assert re.search(case.text, source(str(release), case.path)), release
