"""Who may log in, and how (SASL, server side)."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Final

from amqp_core.error_conditions import CoreCondition
from amqp_core.errors import AuthenticationFailed, DecodeError
from amqp_core.v0_9._read import read_table

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_LOGIN: Final = ("guest", "guest")
"""Taken from the same machine only."""


class Logins:
    """Names and passwords. Immutable: any thread may use it."""

    mechanisms: Final = ("PLAIN", "AMQPLAIN")

    def __init__(self, passwords: Mapping[str, str] | None = None) -> None:
        self._passwords = dict([DEFAULT_LOGIN] if passwords is None else passwords)

    def __repr__(self) -> str:
        return f"<{len(self._passwords)} logins>"

    def check(self, mechanism: str, response: bytes) -> str:
        """The name of the login that a SASL response proves.

        Raises:
            AuthenticationFailed: name or password is wrong, or the mechanism is not offered.
        """
        name, password = self._parsed(mechanism, response)
        expected = self._passwords.get(name)
        # compared in any case, so that the time does not tell which names there are
        matches = hmac.compare_digest(password.encode(), (expected or "").encode())
        if expected is None or not matches:
            raise _refused(mechanism, "name or password is wrong")
        return name

    def _parsed(self, mechanism: str, response: bytes) -> tuple[str, str]:
        if mechanism == "PLAIN":
            parts = response.decode("utf-8", "replace").split("\0")
            if len(parts) == 3:
                return parts[1], parts[2]
            raise _refused(mechanism, "the response is not of the form of RFC 4616")
        if mechanism == "AMQPLAIN":
            try:
                table, _ = read_table(len(response).to_bytes(4) + response, 0)
            except DecodeError as error:
                raise _refused(mechanism, "the response is no field table") from error
            return str(table.get("LOGIN", "")), str(table.get("PASSWORD", ""))
        raise _refused(mechanism, "it is not offered")


def _refused(mechanism: str, reason: str) -> AuthenticationFailed:
    return AuthenticationFailed(CoreCondition.LOGIN_REFUSED(mechanism=mechanism[:40], reason=reason))
