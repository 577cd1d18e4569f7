"""The settings file on disk: read at start, re-read when its content changes."""

from __future__ import annotations

import logging
from pathlib import Path

from dsv4_canary.settings import Settings, SettingsError, parse_settings

log = logging.getLogger("dsv4_canary.settings")


class SettingsFile:
    """Keeps the last good settings. ``error`` is the refusal of the current content, None when it is good.

    The file is compared by content: a ConfigMap volume swaps a directory link, which leaves no useful time
    stamp, and the file is a few hundred bytes.
    """

    def __init__(self, path: str) -> None:
        """Read the file for the first time. Raises SettingsError."""
        self._path = Path(path)
        self._seen: bytes | None = self._read()
        self.settings: Settings = self._parse(self._seen)
        self.error: str | None = None

    def poll(self) -> bool:
        """Look at the file again. True when the content or its validity changed. Never raises."""
        try:
            data = self._read()
        except SettingsError as error:
            self._seen = None
            return self._refuse(error)
        if data == self._seen:
            return False
        self._seen = data
        try:
            self.settings = self._parse(data)
        except SettingsError as error:
            return self._refuse(error)
        self.error = None
        log.info("settings file changed, new settings in force")
        return True

    def _refuse(self, error: SettingsError) -> bool:
        if self.error == str(error):
            return False
        self.error = str(error)
        log.warning("settings file refused, last good settings stay in force: %s", error)
        return True

    def _read(self) -> bytes:
        try:
            return self._path.read_bytes()
        except OSError as error:
            raise SettingsError(
                "settings file",
                str(self._path),
                f"cannot be read ({error.strerror})",
                "mount the canary ConfigMap there or set DSV4_CANARY_CONFIG",
            ) from None

    def _parse(self, data: bytes) -> Settings:
        settings, unknown = parse_settings(data)
        if unknown:
            log.warning("settings file has fields this version does not know, ignored: %s", ", ".join(unknown))
        return settings
