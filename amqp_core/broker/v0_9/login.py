"""SASL of the server role: the mechanisms that carry a name and a password."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqp_core.error_conditions import CoreCondition
from amqp_core.errors import AuthenticationFailed, DecodeError
from amqp_core.v0_9._read import read_table

if TYPE_CHECKING:
    from amqp_core.broker.logins import Logins

MECHANISMS: Final = ("PLAIN", "AMQPLAIN")


def log_in(logins: Logins, mechanism: str, response: bytes) -> str:
    """The name of the login that a SASL response proves.

    Raises:
        AuthenticationFailed: name or password is wrong, or the mechanism is not offered.
    """
    if mechanism == "PLAIN":
        name, password = _plain(response)
    elif mechanism == "AMQPLAIN":
        name, password = _amqplain(response)
    else:
        raise _refused(mechanism, f"offered are {', '.join(MECHANISMS)}")
    if not logins.match(name, password):
        raise _refused(mechanism, "name or password is wrong")
    return name


def _plain(response: bytes) -> tuple[str, str]:
    parts = response.decode("utf-8", "replace").split("\0")
    if len(parts) != 3:
        raise _refused("PLAIN", "the response is not of the form of RFC 4616")
    return parts[1], parts[2]


def _amqplain(response: bytes) -> tuple[str, str]:
    try:
        table, _ = read_table(len(response).to_bytes(4) + response, 0)
    except DecodeError as error:
        raise _refused("AMQPLAIN", "the response is no field table") from error
    return str(table.get("LOGIN", "")), str(table.get("PASSWORD", ""))


def _refused(mechanism: str, reason: str) -> AuthenticationFailed:
    return AuthenticationFailed(CoreCondition.LOGIN_REFUSED(mechanism=mechanism[:40], reason=reason))
