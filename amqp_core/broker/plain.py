"""SASL PLAIN (RFC 4616) of the server role, for all protocols."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_core.error_conditions import CoreCondition
from amqp_core.errors import AuthenticationFailed

if TYPE_CHECKING:
    from amqp_core.broker.logins import Logins


def plain(response: bytes) -> tuple[str, str]:
    """Name and password in a response of PLAIN.

    Raises:
        AuthenticationFailed: it is not of the form of RFC 4616.
    """
    parts = response.decode("utf-8", "replace").split("\0")
    if len(parts) != 3:
        raise refused("PLAIN", "the response is not of the form of RFC 4616")
    return parts[1], parts[2]


def check(logins: Logins, mechanism: str, name: str, password: str) -> str:
    """Return the name of a login.

    Raises:
        AuthenticationFailed: name or password is wrong.
    """
    if not logins.match(name, password):
        raise refused(mechanism, "name or password is wrong")
    return name


def refused(mechanism: str, reason: str) -> AuthenticationFailed:
    """The error of a login that is refused."""
    return AuthenticationFailed(CoreCondition.LOGIN_REFUSED(mechanism=mechanism[:40], reason=reason))
