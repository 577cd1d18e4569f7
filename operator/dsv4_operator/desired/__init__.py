"""Pure builders: one module per kind of child, each `build_*` returning a plain dict."""

from dsv4_operator.desired.children import build_children
from dsv4_operator.desired.context import DesiredContext

__all__ = ["DesiredContext", "build_children"]
