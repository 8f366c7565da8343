"""The error of a login that the server role refuses."""

from __future__ import annotations

from amqp_core.error_conditions import CoreCondition
from amqp_core.errors import AuthenticationFailed


def refused(mechanism: str, reason: str) -> AuthenticationFailed:
    """A login that is refused: for the log of the broker, the client is not told why."""
    return AuthenticationFailed(CoreCondition.LOGIN_REFUSED(mechanism=mechanism[:40], reason=reason))
