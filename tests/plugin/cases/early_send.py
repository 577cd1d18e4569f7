"""The early-send backport on the real scheduler class of 0.5.17."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

from dsv4_guard import early_send, releases


def sends(consumer_index: int, guarded: bool = True) -> list[int]:
    """Which requests of a batch are sent early, with a load begun by its build or not."""
    from sglang.srt.managers import scheduler as module
    from sglang.srt.managers.scheduler import Scheduler

    sent: list[int] = []

    class Stop(Exception):
        """The forward would begin here."""

    def early(self: Any, req: Any) -> None:
        sent.append(req)

    mixin = next(base for base in Scheduler.__mro__ if "maybe_send_cached_prefix_chunk" in vars(base))
    mixin.maybe_send_cached_prefix_chunk = early
    if guarded:
        early_send.install(releases.V0_5_17)

    class Forward:
        def __bool__(self) -> bool:
            raise Stop

    scheduler = object.__new__(Scheduler)
    scheduler.__dict__.update(
        forward_ct=0, is_generation=Forward(), forward_sleep_time=None, _sched_idled=False,
        scripted_scheduler_hook=None,
        disaggregation_mode=module.DisaggregationMode.PREFILL, processed_tokens_counter=0,
        profiler_manager=SimpleNamespace(_profile_batch_predicate=lambda batch: None),
    )  # fmt: skip
    batch = SimpleNamespace(
        reqs=[1, 2, 3], hicache_consumer_index=consumer_index, extend_num_tokens=0, split_index=0,
        forward_mode=SimpleNamespace(
            is_prebuilt=lambda: False, is_extend=lambda: True, is_split_prefill=lambda: False, is_prefill=lambda: True
        ),
        return_logprob=False, spec_info=None,
    )  # fmt: skip
    with contextlib.suppress(Stop):
        scheduler.run_batch(batch)
    return sent
