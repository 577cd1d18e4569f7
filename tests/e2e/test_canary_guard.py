"""BF16 index-K on an image without the plugin's marker, on the real node: never Ready, and status says why."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from canary_lab import Pod, report, samples, total
from operator_process import OperatorProcess
from world import World, deployment, is_ready

pytestmark = pytest.mark.node

FAST = [{"name": "DSV4_SIM_STARTUP_SECONDS", "value": "0"}, {"name": "DSV4_SIM_HEALTH_SECONDS", "value": "0.2"}]


def test_bf16_needs_an_image_that_shows_the_marker(
    serving_world: World, start_operator: Callable[..., OperatorProcess]
) -> None:
    world = serving_world
    start_operator(world.cluster, "--no-lease", f"--namespaces={world.namespace}")
    world.create(deployment("pair", indexK={"dtype": "BF16"}, engine={"env": FAST}))

    def engines() -> list[Pod]:
        return [*world.pods("pair", "prefill"), *world.pods("pair", "decode")]

    def missed() -> bool:
        found = [report(pod) for pod in engines()]
        return len(found) == 2 and all(seen["reason"] == "GuardMissing" for seen in found)

    world.wait("both canaries to miss the marker", missed, timeout=120)
    ready = world.wait(
        "status to say why",
        lambda: (c := world.condition("pair", "Ready")).get("status") == "False" and "guard" in c["message"] and c,
        timeout=60,
    )
    print(f"\n{ready['reason']}: {ready['message']}")
    bare = engines()
    assert any(pod["metadata"]["name"] in ready["message"] for pod in bare)
    for pod in bare:
        found = samples(pod)
        guard = [total(found, f"dsv4_canary_{what}") for what in ("guard_required", "guard_present", "ready")]
        assert (guard, is_ready(pod)) == ([1, 0, 0], False)
        assert world.workers("pair", pod["metadata"]["labels"]["serving.dsv4.dev/fingerprint"]) == []

    # The same spec on an image that has the plugin.
    world.patch("pair", {"engine": {"env": [*FAST, {"name": "DSV4_SIM_GUARD", "value": "1"}]}})
    world.wait_ready("pair")
    for pod in (*world.serving("pair", "prefill"), *world.serving("pair", "decode")):
        assert total(samples(pod), "dsv4_canary_guard_present") == 1
        assert report(pod)["guard"]["indexK"] == "bf16"
    assert world.chat_tool_call("pair") == {"item": "blue lamp", "count": 3}
