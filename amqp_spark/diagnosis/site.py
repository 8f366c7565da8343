"""What is examined: a broker, a login, and the names of queues and exchanges."""

from __future__ import annotations

import dataclasses
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from amqp_core.address import format_address
from amqp_spark.connect import connect
from amqp_spark.state.names import lock_queue

if TYPE_CHECKING:
    from amqp_core.address import ConnectOptions
    from amqp_core.api import Client
    from amqp_spark.diagnosis.findings import Status

CALL_SECONDS: Final = 30.0
"""A broker that answers later than this is taken for one that does not answer."""


@dataclass(frozen=True, slots=True)
class Host:
    """One host of the list. Immutable: any thread may use it.

    Attributes:
        name, port: its address.
        wrong: status of what keeps the connector from using it.
    """

    name: str
    port: int
    wrong: Status

    @property
    def section(self) -> str:
        """Title of the findings about it."""
        return format_address(self.name, self.port)


@dataclass(frozen=True, slots=True)
class Site:
    """What is examined. Immutable: any thread may use it.

    Attributes:
        options: of the connection.
        queues: names of the user's queues.
        exchanges: names of the user's exchanges; the empty one is the default exchange.
        exactly_once: whether exactly-once is wanted, so that its absence is an error.
        declares: whether the source declares queues that do not exist (declare=ifMissing).
        queue_type: the type with which it does; ``None``: the broker's default.
    """

    options: ConnectOptions
    queues: tuple[str, ...] = ()
    exchanges: tuple[str, ...] = ()
    exactly_once: bool = False
    declares: bool = False
    queue_type: str | None = None

    @property
    def wants_source(self) -> bool:
        """Whether an exactly-once source is wanted."""
        return self.exactly_once and bool(self.queues or not self.exchanges)

    @property
    def wants_sink(self) -> bool:
        """Whether an exactly-once sink is wanted."""
        return self.exactly_once and bool(self.exchanges or not self.queues)

    def connect(self) -> Client:
        """Return a client. A refusal ends some clients, so each question that may be refused has one of its own.

        Raises:
            AmqpError: as :func:`amqp_spark.connect.connect`.
        """
        options = dataclasses.replace(self.options, client_name="amqp_spark doctor")
        return connect(options, call_timeout_s=CALL_SECONDS)

    def virtual_host(self, protocol: str) -> str:
        """Name of the virtual host, as texts show it."""
        return self.options.virtual_host or ("the broker's default" if protocol == "0-10" else "/")


def temporary_name() -> str:
    """Return an unused name for a temporary queue: one that logins with the least rights for exactly-once may use."""
    return lock_queue(f"doctor-{uuid.uuid4().hex[:16]}")
