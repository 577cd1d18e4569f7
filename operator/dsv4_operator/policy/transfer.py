"""Rules about the way of KV from prefill to decode: what is sent when, and who frees which page when."""

from __future__ import annotations

from collections.abc import Iterator

from dsv4_operator.engine.releases import Release, ReleaseRange
from dsv4_operator.engine.rendered import EARLY_SEND
from dsv4_operator.policy.finding import Action, Remark, Rule
from dsv4_operator.policy.subject import Subject

_READ_DONE = "SGLANG_ENABLE_PREFILL_WAR_READ_DONE"
_WAITING = "SGLANG_DISAGGREGATION_WAITING_TIMEOUT"
_GUARDED = Release((0, 5, 23))


def _early_send(subject: Subject) -> Iterator[Remark]:
    why = "NIXL ignores the fence of the running forward, so pages could leave before they are written"
    if subject.spec.hi_cache.enabled and subject.known is not None and subject.known < _GUARDED:
        why = "a request that shares a prefix could send pages which HiCache is still loading, and " + why
    yield "spec.prefill", f"early send of cached prefixes is turned off on prefill ({EARLY_SEND.name}=0): {why}"


def _nixl_minimum(subject: Subject) -> Iterator[Remark]:
    yield (
        "spec.engine.release",
        f"NIXL in SGLang {subject.known} loses requests: one whose decode does not answer stays in Bootstrapping for "
        "ever, without a timeout; use SGLang 0.5.18 or later",
    )


def _deferred_release(_: Subject) -> Iterator[Remark]:
    yield (
        "spec.decode",
        "decode keeps the pages of an aborted request until prefill has drained "
        "(SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE=1): by default this release frees them at once, and a late "
        "write would land in another request",
    )


def _abort_reuse(subject: Subject) -> Iterator[Remark]:
    yield (
        "spec.engine.release",
        f"with NIXL, SGLang {subject.known} frees the pages of an aborted request while prefill may still write into "
        "them, so another request can read foreign KV; use SGLang 0.5.21 or later where clients abort often",
    )


def _stale_bootstrap(subject: Subject) -> Iterator[Remark]:
    yield (
        "spec.engine.release",
        f"decode in SGLang {subject.known} keeps the ports of a prefill that restarted on the same address, and every "
        "later request to it fails; use SGLang 0.5.19 or later, or delete decode pods whenever a prefill restarts",
    )


def _silent_failure(subject: Subject) -> Iterator[Remark]:
    if subject.variable("decode", _WAITING) is None:
        yield (
            "spec.decode.env",
            f"with NIXL, SGLang {subject.known} does not tell decode when prefill fails, so such a request waits the "
            f"whole 300 s; set {_WAITING} to what your clients wait at most, or use 0.5.20 or later",
        )


def _read_done(subject: Subject) -> Iterator[Remark]:
    for variable in subject.sets(_READ_DONE):
        if variable.on:
            yield (
                variable.path,
                f"{_READ_DONE} lets the next batch start before the forward has ended, and NIXL does not wait for the "
                "forward either, so what is sent may be unfinished; remove it",
            )


RULES = (
    Rule(
        id="early-send",
        action=Action.SET,
        title="No early send of cached prefixes with NIXL",
        source="sgl-project/sglang #44070, PR #39417",
        releases=EARLY_SEND.releases,
        explanation=(
            "Since 0.5.15 prefill sends the cached part of a prompt before it computes the rest. Up to 0.5.22 a "
            "request that matched pages which HiCache was still loading from the host sent them at once (#44070). And "
            "NIXL drops the event of the running forward in every release, so pages of an unfinished chunk can leave "
            "(PR #39417). Both corrupt without a word in any log. On an H200, with loads delayed, some answer was "
            "wrong in 8 of 8 rounds with early send and in none without; with 0.5.23's early end of reads put under "
            "0.5.17 and the forward delayed, 7 of 8 requests arrived with other pages than prefill had, and none "
            "without early send. The price is a later start of the transfer."
        ),
        check=_early_send,
    ),
    Rule(
        id="nixl-minimum-release",
        action=Action.REFUSE,
        title="NIXL needs SGLang 0.5.18",
        source="sgl-project/sglang #34692",
        releases=ReleaseRange.of(None, "0.5.17"),
        explanation=(
            "The helper that times out a request in Bootstrapping was not called for NIXL before 0.5.18. Each decode "
            "that goes away leaves requests behind that hold their KV on prefill for ever, until nothing is left."
        ),
        check=_nixl_minimum,
    ),
    Rule(
        id="deferred-kv-release",
        action=Action.SET,
        title="Pages of aborted requests are kept until prefill has drained",
        source="sgl-project/sglang #35049, #35360",
        releases=ReleaseRange.of("0.5.19", "0.5.20"),
        explanation=(
            "A decode that aborts frees the pages of the request; a transfer under way then writes into pages that "
            "belong to another. 0.5.19 brought a switch, off by default; from 0.5.21 it is on. The operator renders it "
            "for every release that has it."
        ),
        check=_deferred_release,
    ),
    Rule(
        id="abort-page-reuse",
        action=Action.WARN,
        title="NIXL may write into pages of another request after an abort",
        source="sgl-project/sglang #24527, #35360",
        releases=ReleaseRange.of(None, "0.5.20"),
        explanation=(
            "The deferred release of 0.5.19 and 0.5.20 knows Mooncake alone; NIXL takes part from 0.5.21. Before, "
            "clients that disconnect under load can corrupt other answers. A router with retries and short timeouts "
            "makes more aborts than one thinks."
        ),
        check=_abort_reuse,
    ),
    Rule(
        id="stale-bootstrap",
        action=Action.WARN,
        title="A restarted prefill is not recognised",
        source="sgl-project/sglang #36029, #33789",
        releases=ReleaseRange.of(None, "0.5.18"),
        explanation=(
            "Decode caches ranks and ports of a prefill by its address. Before 0.5.19 it kept them when the process "
            "behind the address was a new one. Pods that are replaced have new addresses; a container that restarts "
            "in its pod has not."
        ),
        check=_stale_bootstrap,
    ),
    Rule(
        id="nixl-silent-failure",
        action=Action.WARN,
        title="Decode is not told of a failed prefill",
        source="sgl-project/sglang #36033, #36108",
        releases=ReleaseRange.of(None, "0.5.19"),
        explanation=(
            "A prefill that fails a transfer over NIXL sent no message to decode before 0.5.20; decode gives up after "
            "its waiting timeout of 300 s, with pages allocated the whole time."
        ),
        check=_silent_failure,
    ),
    Rule(
        id="early-read-done",
        action=Action.WARN,
        title="The early end of a forward's reads",
        source="sgl-project/sglang PR #39417, sglang 0.5.18 to 0.5.23 srt/environ.py",
        releases=ReleaseRange.of("0.5.18", None),
        explanation=(
            "The variable publishes an event as soon as shared reads are done, before the forward has ended. It is "
            "off up to 0.5.22 and on in 0.5.23. NIXL has no wait of its own for the forward, and with DSPARK even "
            "HiCache's barrier does not cover it up to 0.5.22."
        ),
        check=_read_done,
    ),
)
