"""The configuration file as it is now: of its values ``mode``, ``caps`` and ``defaults`` take effect without a restart.

These are the words of the installation over all policies, and turning everything into a dry run must not have to wait
for a roll-out. Everything else is read at the start.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from defragd.errors import ConfigError
from defragd.policy.caps import Caps
from defragd.policy.load import Context
from defragd.ports import Hook
from defragd.settings import Settings


class LiveSettings:
    """One thread asks. ``shown`` is what the API tells, kept up to date."""

    def __init__(self, settings: Settings, *, path: str | None, reread: Callable[[], Settings], hook: Hook) -> None:
        self._settings, self._path, self._reread, self._hook = settings, path, reread, hook
        self._seen = self._text()
        self.shown: dict[str, Any] = settings.redacted()

    def context(self) -> Context:
        """What policies are checked against now. A file that is broken or gone keeps the last good values."""
        text = self._text()
        if text is not None and text != self._seen:
            self._seen = text
            try:
                self._settings = self._reread()
            except ConfigError as error:
                self._hook("settings.broken", {"reason": str(error), "level": "warning"})
            else:
                self.shown.update(self._settings.redacted())
                self._hook("settings.reloaded", {"mode": self._settings.mode})
        return context_of(self._settings)

    def _text(self) -> bytes | None:
        try:
            return Path(self._path).read_bytes() if self._path else None
        except OSError:
            return None


def context_of(settings: Settings) -> Context:
    """Caps, modes and defaults of the installation."""
    caps = settings.caps.model_dump()
    modes = tuple(caps.pop("modes"))
    return Context(
        caps=Caps(**caps, modes=modes if settings.mode == "Policy" else ("DryRun",)), defaults=settings.defaults
    )
