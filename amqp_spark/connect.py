"""Select the protocol of a connection: AMQP 0-10. Only this module and :mod:`amqp_spark.arrow` name a protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from amqp_core.address import ConnectOptions
from amqp_core.v0_10.client import DEFAULT_CALL_TIMEOUT_S
from amqp_core.v0_10.client import Client as Client010
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import UnsupportedModeError

if TYPE_CHECKING:
    from amqp_core.api import Client


def connect(options: ConnectOptions, *, call_timeout_s: float = DEFAULT_CALL_TIMEOUT_S) -> Client:
    """Return a connected client, for use on the caller's thread; see :meth:`amqp_core.v0_10.client.Client.connect`."""
    return Client010.connect(options, call_timeout_s=call_timeout_s)


def require(client: Client, purpose: str, *capabilities: str) -> None:
    """Check that a broker has these :class:`amqp_core.api.Capabilities`, before anything is sent.

    Raises:
        UnsupportedModeError: one is missing; its text begins with ``purpose``, the option or action that needs it.
    """
    for name in capabilities:
        if not getattr(client.capabilities, name):
            capability = name.replace("_", " ")
            raise UnsupportedModeError(
                SparkCondition.CAPABILITY_MISSING(purpose=purpose, capability=capability, peer=client.peer)
            )


Connector = Callable[[ConnectOptions], "Client"]
"""Connects one incarnation of a client; tests replace it."""
