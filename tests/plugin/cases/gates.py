"""The gate guarantee on the real pool class."""

from __future__ import annotations

from typing import Any

from dsv4_guard import gates, patching, releases


def pool() -> Any:
    return patching.resolve(releases.POOL)[2]


def shipped(version: str) -> dict[str, Any]:
    """As shipped: every accessor waits, nothing is wrapped."""
    release = releases.choose(version, allow_untested=False)
    wrapped = gates.install(release, always_wait=False)
    return {"wrapped": list(wrapped), "waits": {name: gates.waits_first(pool(), name) for name in release.gated}}


def opened(version: str) -> dict[str, Any]:
    """One accessor loses its wait."""
    release = releases.choose(version, allow_untested=False)

    def get_index_k_scale_buffer(self: Any, layer_id: int, *_: Any) -> Any:
        return self.layer_mapping[layer_id]

    pool().get_index_k_scale_buffer = get_index_k_scale_buffer
    before = gates.waits_first(pool(), "get_index_k_scale_buffer")
    wrapped = gates.install(release, always_wait=False)
    return {
        "waits_before": before,
        "wrapped": list(wrapped),
        "waits_after": gates.waits_first(pool(), "get_index_k_scale_buffer"),
    }


def misplaced(fault: str) -> bool:
    """Accessors that look gated and are not."""

    def reads_first(self: Any, layer_id: int) -> Any:
        buffer = self.c4_indexer_kv_pool
        self.wait_layer_transfer(layer_id)
        return buffer

    def waits_for_another_layer(self: Any, layer_id: int) -> Any:
        self.wait_layer_transfer(layer_id - 1)
        return self.c4_indexer_kv_pool

    def waits_twice_wrongly(self: Any, layer_id: int) -> Any:
        self.wait_layer_transfer(layer_id)
        self.wait_layer_transfer(0)
        return self.c4_indexer_kv_pool

    pool().get_index_k_with_scale_buffer = locals()[fault]
    return gates.waits_first(pool(), "get_index_k_with_scale_buffer")


def order() -> dict[str, Any]:
    """The wrapped accessor on an object with a buffer, with HiCache and without."""
    seen: list[str] = []

    class Counter:
        def wait_until(self, layer: int) -> None:
            seen.append(f"wait {layer}")

    def get_index_k_with_scale_buffer(self: Any, layer_id: int) -> Any:
        seen.append("buffer")
        return self.buffers[layer_id]

    accessor = gates.waiting(get_index_k_with_scale_buffer)
    made = object.__new__(type("Pool", (), {}))
    made.layer_transfer_counter, made.start_layer, made.buffers = Counter(), 3, {7: "bytes"}
    assert accessor(made, layer_id=7) == "bytes"
    first, seen[:] = list(seen), []
    made.layer_transfer_counter = None
    assert accessor(made, 7) == "bytes"
    return {"order": first, "without_hicache": list(seen)}


def new_method() -> None:
    """A release that grew an accessor, loaded as a scheduler would."""
    pool().get_index_k_quickly = lambda self, layer_id: self.c4_indexer_kv_pool
    from cases import plugins

    plugins.guard()
    plugins.run_scheduler_process()
