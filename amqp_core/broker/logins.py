"""Who may log in."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_LOGIN: Final = ("guest", "guest")
"""The broker listens on the loopback address only."""


class Logins:
    """Names and passwords. Immutable: any thread may use it."""

    def __init__(self, passwords: Mapping[str, str] | None = None) -> None:
        self._passwords = dict([DEFAULT_LOGIN] if passwords is None else passwords)

    def __repr__(self) -> str:
        return f"<{len(self._passwords)} logins>"

    def match(self, name: str, password: str) -> bool:
        """Whether there is such a login."""
        expected = self._passwords.get(name)
        # compared in any case, so that the time does not tell which names there are
        matches = hmac.compare_digest(password.encode(), (expected or "").encode())
        return expected is not None and matches
