"""Pieces of PromQL that bring every series to one spelling.

Three spellings vary between installs and releases, and no rule may depend on them:

- SGLang's own names hold a colon (``sglang:x``); scrapers that escape names, and collectors in between, write
  ``sglang_x``. The first spelling that exists is taken, never both, so nothing counts twice.
- The labels that say whose pod it is: ``deployment``, ``role``, ``fingerprint`` from our PodMonitors, or
  ``serving_dsv4_dev_deployment`` and so on from a label map or ``podTargetLabels``.
- Labels that a series and its target share (``namespace`` of the operator's series) come as ``exported_namespace``
  unless labels are honored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

POD: Final = ("namespace", "deployment", "fingerprint", "role", "pod")
"""What identifies an engine pod in all our series."""
GENERATION: Final = ("namespace", "deployment", "fingerprint")
"""All pods of one KV fingerprint: what history is compared within."""
DEPLOYMENT: Final = ("namespace", "deployment")

_POD_LABELS: Final = ("deployment", "fingerprint", "role")


def selector(name: str, matchers: str = "") -> str:
    """An instant selector."""
    return f"{name}{{{matchers}}}" if matchers else name


def target_labels(expression: str) -> str:
    """The expression with the labels of its pod under their short names."""
    return _renamed(expression, [(label, f"serving_dsv4_dev_{label}") for label in _POD_LABELS])


def pods(name: str, *more: str, matchers: str = "", fold: str = "max") -> str:
    """One of our own series, once for each pod (and each value of the labels `more`)."""
    return f"{fold} by ({', '.join([*POD, *more])}) (\n{target_labels(selector(name, matchers))}\n)"


def pod_increase(name: str, window: str, *more: str, matchers: str = "") -> str:
    """How much one of our own counters grew in each pod."""
    return _summed(f"increase({selector(name, matchers)}[{window}])", (*POD, *more))


def generation_increase(name: str, window: str, *more: str, matchers: str = "") -> str:
    """How much one of our own counters grew over all pods of a generation."""
    return _summed(f"increase({selector(name, matchers)}[{window}])", (*GENERATION, *more))


def generation_rate(name: str, window: str, matchers: str = "") -> str:
    """Growth a second of one of our own counters over all pods of a generation."""
    return _summed(f"rate({selector(name, matchers)}[{window}])", GENERATION)


def engine_gauge(name: str, matchers: str = "") -> str:
    """A gauge of SGLang's schedulers, summed over the data-parallel ranks of each pod.

    Tensor-parallel ranks report the same requests when ``--enable-metrics-for-all-schedulers`` is set, so ranks of one
    data-parallel rank are folded with max.
    """
    return _either(
        name,
        lambda spelt: (
            f"sum by ({', '.join(POD)}) (max by ({', '.join([*POD, 'dp_rank'])}) (\n"
            f"{target_labels(selector(spelt, matchers))}\n))"
        ),
    )


def engine_rate(name: str, window: str, by: tuple[str, ...] = POD, matchers: str = "") -> str:
    """Growth a second of a counter of SGLang."""
    return _either(name, lambda spelt: _summed(f"rate({selector(spelt, matchers)}[{window}])", by))


def engine_increase(name: str, window: str, by: tuple[str, ...] = POD, matchers: str = "") -> str:
    """How much a counter of SGLang grew in the window."""
    return _either(name, lambda spelt: _summed(f"increase({selector(spelt, matchers)}[{window}])", by))


def engine_count(name: str) -> str:
    """How many series of this name each pod has: whether the engine's metrics arrive at all."""
    return _either(name, lambda spelt: f"count by ({', '.join(POD)}) (\n{target_labels(spelt)}\n)")


def objects(name: str, *more: str, matchers: str = "") -> str:
    """One of the operator's series about a DSV4Deployment, with its name as `deployment`.

    The operator's series name the object in `namespace` and `name`; a scraper that does not honor labels moves them
    out of the way of the target's own.
    """
    sources = [("deployment", "name"), ("deployment", "exported_name"), ("namespace", "exported_namespace")]
    return f"max by ({', '.join([*DEPLOYMENT, *more])}) (\n{_renamed(selector(name, matchers), sources)}\n)"


def _renamed(expression: str, sources: list[tuple[str, str]]) -> str:
    """The expression with labels copied from others where those exist; one line a label."""
    lines = [f'    "{target}", "$1", "{source}", "(.+)")' for target, source in sources]
    return f"  {'label_replace(' * len(sources)}{expression},\n" + ",\n".join(lines)


def _summed(expression: str, by: tuple[str, ...]) -> str:
    return f"sum by ({', '.join(by)}) (\n{target_labels(expression)}\n)"


def _either(name: str, make: Callable[[str], str]) -> str:
    return f"{make(f'sglang:{name}')}\nor\n{make(f'sglang_{name}')}"
