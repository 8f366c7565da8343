"""SASL mechanisms of this protocol that send a name and a password."""

from __future__ import annotations

from typing import Final

from amqp_core.broker.login import plain
from amqp_core.broker.sasl_errors import refused
from amqp_core.errors import DecodeError
from amqp_core.v0_9._read import read_table


def amqplain(response: bytes) -> tuple[str, str]:
    """Name and password in a response of AMQPLAIN.

    Raises:
        AuthenticationFailed: it is no field table.
    """
    try:
        table, _ = read_table(len(response).to_bytes(4) + response, 0)
    except DecodeError as error:
        raise refused("AMQPLAIN", "the response is no field table") from error
    return str(table.get("LOGIN", "")), str(table.get("PASSWORD", ""))


PASSWORDS: Final = {"PLAIN": plain, "AMQPLAIN": amqplain}
