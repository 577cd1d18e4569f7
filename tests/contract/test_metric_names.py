"""Names that the canary reads from an engine's metrics, in the wheels of all known releases; parsed, not imported."""

from __future__ import annotations

import ast
import zipfile

import pytest
from wheels import wheel

from dsv4_canary.engine_view import _LOADS, _WANTED
from dsv4_operator.engine.releases import KNOWN_RELEASES

COLLECTOR = "sglang/srt/observability/metrics_collector.py"


def read(release: str, path: str) -> str:
    with zipfile.ZipFile(wheel(release)) as archive:
        return archive.read(path).decode()


@pytest.mark.parametrize("release", KNOWN_RELEASES)
def test_every_series_exists(release: str) -> None:
    literals = {
        node.value
        for node in ast.walk(ast.parse(read(release, COLLECTOR)))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert {f"sglang:{name}" for name in _WANTED} - literals == set()


@pytest.mark.parametrize("release", KNOWN_RELEASES)
def test_what_the_reading_relies_on(release: str) -> None:
    """Tokens count per forward by mode; those of requests when these finish; health checks are left out."""
    text = read(release, COLLECTOR)
    for mode in ("prefill_compute", "prefill_cache", "decode"):
        assert f'("{mode}", ' in text
    finished = text.partition("def observe_one_finished_request")[2].partition("\n    def ")[0]
    assert "self.generation_tokens_total.labels" in finished
    server = read(release, "sglang/srt/entrypoints/http_server.py")
    health = server.partition("async def health_generate")[2].partition("\n@app.")[0]
    assert "log_metrics=False" in health
    # Without generation /health proves the HTTP process alone.
    assert "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION" in health


@pytest.mark.parametrize("release", KNOWN_RELEASES)
def test_current_queue_lengths_are_told(release: str) -> None:
    with zipfile.ZipFile(wheel(release)) as archive:
        names = [
            name for name in archive.namelist() if name.startswith("sglang/srt/managers/") and name.endswith(".py")
        ]
        text = "\n".join(archive.read(name).decode() for name in names)
    assert '@router.get("/v1/loads")' in read(release, "sglang/srt/entrypoints/v1_loads.py")
    for field in ("num_running_reqs", *_LOADS):
        assert f"{field}: int" in text
