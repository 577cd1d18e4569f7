"""The own spec of a test object while bisect edits it, on disk: a killed run cannot put it back itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsv4_operator.cli.errors import UnreadableError


class Backup:
    """One file, which exists from before the first edit until the spec has been put back."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def keep(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Keep the present spec and return the one to put back.

        A file that is there already is of a run that was killed: the present spec is then that of one of its arms.
        Raises UnreadableError.
        """
        try:
            if self.path.exists():
                return dict(json.loads(self.path.read_bytes())["spec"])
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part = self.path.with_name(f".{self.path.name}.part")
            part.touch(mode=0o600)  # variables of a spec may hold secrets
            part.write_text(json.dumps({"spec": spec}, indent=1) + "\n")
            part.replace(self.path)
        except OSError as error:
            raise UnreadableError(
                f"{self.path}: cannot be used ({error.strerror}), and a test object is not edited without it"
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise UnreadableError(
                f"{self.path}: holds no spec ({error}); put the test object right, then remove the file"
            ) from None
        return dict(spec)

    def done(self) -> None:
        """The spec has been put back."""
        self.path.unlink(missing_ok=True)
