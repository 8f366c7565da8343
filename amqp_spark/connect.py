"""Connect to a broker, with the protocol of its options, and check what the protocol and the broker can do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from amqp_core.address import ConnectOptions, format_address
from amqp_core.errors import ConnectionLost, SpeaksNoAmqp
from amqp_core.port_check import closes_at_header
from amqp_core.protocols import DEFAULT_CALL_TIMEOUT_S
from amqp_core.protocols import connect as connect_core
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import UnsupportedModeError

if TYPE_CHECKING:
    from amqp_core.api import Client


_brokers: Final[set[tuple[tuple[str, int], ...]]] = set()
"""The hosts to which this process has connected before. Each use is one operation of a set: any thread may do it."""


def connect(options: ConnectOptions, *, call_timeout_s: float = DEFAULT_CALL_TIMEOUT_S) -> Client:
    """Return a connected client, for use on the caller's thread; see :func:`amqp_core.protocols.connect`.

    Raises:
        SpeaksNoAmqp: the only host has closed the connection without an answer, and does so because of what we send
            (:mod:`amqp_core.port_check`). A host to which this process has connected before is not suspected.
    """
    try:
        client = connect_core(options, call_timeout_s=call_timeout_s)
    except ConnectionLost as error:
        if len(options.hosts) > 1 or options.tls or options.hosts in _brokers:
            raise
        [(host, port)] = options.hosts
        if closes_at_header(host, port, timeout=options.connect_timeout):
            raise SpeaksNoAmqp(format_address(host, port)) from error
        raise
    _brokers.add(options.hosts)
    return client


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


def require_prepared_transactions(client: Client) -> None:
    """Check that a broker has what exactly-once needs to write: prepared transactions, which AMQP 0-9-1 does not have.

    Raises:
        UnsupportedModeError: it has none; the text names the alternative.
    """
    if not client.capabilities.distributed_transactions:
        raise UnsupportedModeError(SparkCondition.EXACTLY_ONCE_NOT_OFFERED(peer=client.peer, protocol=client.protocol))


def require_kept_state(client: Client, *, changes_consumer: bool = False) -> None:
    """Check that the state of exactly-once can be browsed and prepared transactions listed, which AMQP 0-9-1 cannot.

    Args:
        client: of the broker.
        changes_consumer: whether the caller changes the state of a consumer. The state of a quorum queue is in its
            spool, and can only be shown.

    Raises:
        UnsupportedModeError: it has none; the text names the alternative.
    """
    if client.capabilities.counts_deliveries and changes_consumer:
        raise UnsupportedModeError(SparkCondition.STATE_ONLY_SHOWN(peer=client.peer))
    if not client.capabilities.distributed_transactions:
        raise UnsupportedModeError(SparkCondition.STATE_NOT_KEPT(peer=client.peer, protocol=client.protocol))


def require_for_option(client: Client, option: str, value: object, capability: str, allowed: str) -> None:
    """Check that a broker has the capability that the value of an option needs, before anything is sent.

    Raises:
        UnsupportedModeError: it has not; the text names the option, its value and what is ``allowed``.
    """
    if not getattr(client.capabilities, capability):
        raise UnsupportedModeError(
            SparkCondition.OPTION_NOT_SERVED(
                option=option,
                value=value,
                protocol=client.protocol,
                peer=client.peer,
                capability=capability.replace("_", " "),
                allowed=allowed,
            )
        )


Connector = Callable[[ConnectOptions], "Client"]
"""Connects one incarnation of a client; tests replace it."""
