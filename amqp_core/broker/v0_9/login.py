"""SASL of the server role: the mechanisms that carry a name and a password."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqp_core.broker.plain import check, plain, refused
from amqp_core.errors import DecodeError
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
        return check(logins, mechanism, *plain(response))
    if mechanism == "AMQPLAIN":
        return check(logins, mechanism, *_amqplain(response))
    raise refused(mechanism, f"offered are {', '.join(MECHANISMS)}")


def _amqplain(response: bytes) -> tuple[str, str]:
    try:
        table, _ = read_table(len(response).to_bytes(4) + response, 0)
    except DecodeError as error:
        raise refused("AMQPLAIN", "the response is no field table") from error
    return str(table.get("LOGIN", "")), str(table.get("PASSWORD", ""))
