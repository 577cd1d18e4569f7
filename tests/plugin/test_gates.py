"""The gate guarantee on the real pool classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def test_every_accessor_waits_as_shipped(value: Callable[..., Any], release: str) -> None:
    shipped = value("gates", "shipped", version=release)
    assert shipped["wrapped"] == []
    assert "get_index_k_with_scale_buffer" in shipped["waits"]
    assert all(shipped["waits"].values()), shipped["waits"]


def test_the_trial_sees_an_accessor_that_does_not_wait(value: Callable[..., Any], release: str) -> None:
    seen = value("gates", "opened", version=release)
    assert seen == {"waits_before": False, "wrapped": ["get_index_k_scale_buffer"], "waits_after": True}


@pytest.mark.parametrize("fault", ["reads_first", "waits_for_another_layer", "waits_twice_wrongly"])
def test_a_wait_in_the_wrong_place_is_no_wait(value: Callable[..., Any], fault: str) -> None:
    assert value("gates", "misplaced", fault=fault) is False


def test_the_wait_comes_before_the_buffer(value: Callable[..., Any]) -> None:
    """Order on a pool with real buffers: wait for the local layer, then the tensor."""
    assert value("gates", "order") == {"order": ["wait 4", "buffer"], "without_hicache": ["buffer"]}


def test_a_new_method_of_the_pool_is_refused(run: Callable[..., Any]) -> None:
    outcome = run("gates", "new_method")
    assert outcome.exit == 1
    assert "get_index_k_quickly" in outcome.output


@pytest.mark.parametrize("mode", ["indexer", "all"])
def test_hooks_underneath_are_overcome(hosts: Callable[[str], Any], mode: str) -> None:
    """The proof's fault plugin takes the waits away by hooks of its own; ours end up outside."""
    env = {
        "DSV4_LAB_UNGATE": mode,
        "DSV4_LAB_LOAD_DELAY": "1",
        "DSV4_LAB_FORWARD_DELAY": "1",
        "DSV4_LAB_EARLY_BARRIER": "1",
    }
    outcome = hosts("0.5.17").run("plugins", "lab", env)
    assert outcome.exit == 0, outcome.output
    assert outcome.value["unpatched"] == []
    assert outcome.value["waits"]
    assert {"get_index_k_scale_buffer", "get_indexer_compress_states"} <= set(outcome.value["wrapped"])


def test_all_accessors_are_wrapped_on_demand(hosts: Callable[[str], Any]) -> None:
    outcome = hosts("0.5.17").run("plugins", "lab", {"DSV4_GUARD_ALWAYS_WAIT": "1"})
    assert outcome.exit == 0, outcome.output
    assert len(outcome.value["wrapped"]) == 8
