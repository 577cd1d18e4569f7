"""Parts that come with an extra of the distribution: loaded when a command needs them, or named in one line."""

from __future__ import annotations

import importlib
from typing import Any

from dsv4_operator.cli.errors import UnreadableError


def load(module: str, extra: str) -> Any:
    """The module. By name, so that dsv4ctl itself starts with the extra `cli` alone.

    Raises:
        UnreadableError: naming the extra that is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] in ("dsv4_canary", "dsv4_operator"):
            raise  # ours are always there: a fault of the installation, not a missing extra
        raise UnreadableError(
            f"needs the Python package {error.name}, which is not installed; in the checkout: "
            f"pip install '.[cli,{extra}]'"
        ) from None
