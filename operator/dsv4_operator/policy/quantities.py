"""Kubernetes quantities as numbers of bytes."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal
from typing import Final

_QUANTITY: Final = re.compile(r"\+?([0-9.]+)(?:([eE][+-]?[0-9]{1,2})|([A-Za-z]{0,2}))$")
_SUFFIX: Final = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{name: Decimal(1000) ** power for power, name in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{f"{name}i": Decimal(1024) ** power for power, name in enumerate(("K", "M", "G", "T", "P", "E"), 1)},
}
_GIB: Final = 1024**3


def as_bytes(quantity: str) -> int:
    """The value of a quantity that the schema accepts, such as "64Gi"; bytes, rounded up.

    An exponent has two digits at most, and no fraction: nobody means more, and the API server would take it.

    Raises:
        ValueError: when it is no quantity.
    """
    match = _QUANTITY.match(quantity)
    if match is None or match[3] not in (None, *_SUFFIX):
        raise ValueError(f"{quantity!r} is no quantity")
    exponent = Decimal(f"1{match[2]}") if match[2] else _SUFFIX[match[3] or ""]
    return int((Decimal(match[1]) * exponent).to_integral_value(ROUND_CEILING))


def in_gib(number: int) -> str:
    """Bytes for people: 1.5 GiB is "1.5 GiB", and large numbers have no fraction."""
    value = number / _GIB
    return f"{value:.0f} GiB" if value >= 10 else f"{value:.1f} GiB"
