"""Results for a ConfigMap: whole where they fit, the journal left out first, nothing beyond the bound."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4_canary.soak.publish import Account, PublishError, content, own_account, publish


def files(folder: Path, journal: bytes = b"line\n") -> None:
    (folder / "t.json").write_text(json.dumps({"verdict": "clean", "sentence": "No corruption."}))
    (folder / "t.md").write_text("# Soak")
    (folder / "t.jsonl").write_bytes(journal)


def test_all_files_and_the_verdict(tmp_path: Path) -> None:
    files(tmp_path)
    patch = content(tmp_path, "t", 0)
    data = patch["data"]
    assert (data["exit-status"], data["verdict"], data["sentence"]) == ("0", "clean", "No corruption.")
    assert (data["t.md"], data["left-out"]) == ("# Soak", "")
    assert gzip.decompress(base64.b64decode(patch["binaryData"]["t.jsonl.gz"])) == b"line\n"


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2000), st.binary(max_size=3000))
def test_never_more_than_the_limit(tmp_path_factory: pytest.TempPathFactory, limit: int, journal: bytes) -> None:
    folder = tmp_path_factory.mktemp("x")
    files(folder, journal)
    patch = content(folder, "t", 1, limit)
    held = {**patch["data"], **patch["binaryData"]}
    assert sum(len(held[name]) for name in held if name.startswith("t.")) <= limit
    left = set(patch["data"]["left-out"].split())
    assert left | {name for name in held if name.startswith("t.")} == {"t.json", "t.md", "t.jsonl.gz"}


def test_a_run_that_never_began_has_a_status_all_the_same(tmp_path: Path) -> None:
    assert content(tmp_path, "t", 3)["data"] == {"exit-status": "3", "left-out": "t.json t.md t.jsonl.gz"}


def test_outside_a_pod(tmp_path: Path) -> None:
    with pytest.raises(PublishError, match="works in a pod"):
        own_account({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path)
    (tmp_path / "token").write_text("t")
    (tmp_path / "namespace").write_text("ns")
    with pytest.raises(PublishError, match="KUBERNETES_SERVICE_HOST"):
        own_account({}, tmp_path)
    account = own_account({"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}, tmp_path)
    assert account.server == "https://[fd00::1]:6443"


async def test_nobody_answers(tmp_path: Path, unused_tcp_port: int) -> None:
    import certifi  # noqa: PLC0415 - any bundle of authorities

    account = Account(f"https://127.0.0.1:{unused_tcp_port}", "ns", "t", Path(certifi.where()))
    with pytest.raises(PublishError, match="ns/results: not written"):
        await publish(account, "results", {}, patience=0.0)
