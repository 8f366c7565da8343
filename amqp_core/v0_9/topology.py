"""Queues, exchanges and bindings (0-9-1 sections queue and exchange), on the channel of questions.

A refusal closes that channel only (0-9-1 section channel.close): the next call opens it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from amqp_core.api import Route
from amqp_core.client_base import BaseClient
from amqp_core.error_conditions import CoreCondition
from amqp_core.errors import NotFound, UsageError
from amqp_core.v0_9 import spec
from amqp_core.v0_9.driver import ASKING, Driver

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqp_core.api import Target
    from amqp_core.v0_9.channel import Request


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """The answer to a passive queue.declare. Immutable: any thread may use it.

    Attributes:
        queue: name of the queue.
        message_count: messages that are ready; RabbitMQ does not count those that consumers hold.
        subscriber_count: its consumers.
    """

    queue: str
    message_count: int
    subscriber_count: int


class Topology(BaseClient[Driver]):
    """Declares, queries and deletes queues, exchanges and bindings. Not thread-safe.

    Every call raises the error that ended the connection; DeadlineExceeded after the call timeout; and, without an end
    of the connection: NotFound, UnauthorizedAccess, ResourceLocked, PreconditionFailed or another CommandFailed if the
    broker refuses, EncodeError if a value does not fit its wire type.
    """

    def query_queue(self, queue: str) -> QueueInfo | None:
        """Query a queue (queue.declare, passive); ``None`` if it does not exist.

        Raises:
            ResourceLocked: another connection holds it exclusively.
        """
        try:
            answer = self._driver.call(ASKING, spec.QueueDeclare(queue=queue, passive=True), spec.QueueDeclareOk)
        except NotFound:
            self._driver.check()  # it may be the error that ended the client
            return None
        return QueueInfo(answer.queue, answer.message_count, answer.consumer_count)

    def exists_exchange(self, exchange: str) -> bool:
        """Whether an exchange exists (exchange.declare, passive)."""
        try:
            self._driver.call(ASKING, _passive(exchange), spec.ExchangeDeclareOk)
        except NotFound:
            self._driver.check()
            return False
        return True

    def declare_queue(
        self,
        queue: str,
        *,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: dict[str, object] | None = None,
    ) -> None:
        """Create the queue unless it exists with the same properties (queue.declare).

        Args:
            queue: its name, at most 255 bytes of UTF-8.
            durable: it survives a restart of the broker.
            exclusive: only this connection may use it; it is deleted with the connection.
            auto_delete: it is deleted when its last consumer ends.
            arguments: arguments of the broker, such as ``x-queue-type``.

        Raises:
            PreconditionFailed: it exists with other properties; names the first one that differs.
            ResourceLocked: another connection holds it exclusively.
        """
        method = spec.QueueDeclare(
            queue=queue, durable=durable, exclusive=exclusive, auto_delete=auto_delete, arguments=arguments or {}
        )
        self._driver.call(ASKING, method, spec.QueueDeclareOk)

    def declare_lock(self, queue: str) -> None:
        """Create a queue that only this connection may use, and that ends with it (queue.declare, exclusive).

        Auto-delete is not set: with it Broker-J would keep the queue until a consumer of it ends.

        Raises:
            ResourceLocked: another connection has it. Broker-J closes this connection with it.
        """
        self.declare_queue(queue, exclusive=True)

    def delete_queue(self, queue: str, *, if_unused: bool = False, if_empty: bool = False) -> None:
        """Delete a queue with its messages (queue.delete). RabbitMQ deletes one that does not exist without an error.

        Args:
            queue: its name.
            if_unused: refuse while it has consumers.
            if_empty: refuse while it has messages.
        """
        method = spec.QueueDelete(queue=queue, if_unused=if_unused, if_empty=if_empty)
        self._driver.call(ASKING, method, spec.QueueDeleteOk)

    def purge_queue(self, queue: str) -> int:
        """Remove every message that no consumer holds (queue.purge); return their number."""
        return self._driver.call(ASKING, spec.QueuePurge(queue=queue), spec.QueuePurgeOk).message_count

    def declare_exchange(
        self,
        exchange: str,
        kind: str,
        *,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: dict[str, object] | None = None,
    ) -> None:
        """Create the exchange unless it exists with the same properties (exchange.declare).

        Args:
            exchange: its name.
            kind: direct, topic, fanout, headers, or a type of the broker.
            durable: it survives a restart of the broker.
            auto_delete: it is deleted when its last binding is removed.
            internal: only bindings publish to it.
            arguments: arguments of the broker, such as ``alternate-exchange``.

        Raises:
            PreconditionFailed: it exists with other properties; names the first one that differs.
        """
        method = spec.ExchangeDeclare(
            exchange=exchange,
            type=kind,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=arguments or {},
        )
        self._driver.call(ASKING, method, spec.ExchangeDeclareOk)

    def delete_exchange(self, exchange: str, *, if_unused: bool = False) -> None:
        """Delete an exchange (exchange.delete); ``if_unused``: refuse while it has bindings."""
        self._driver.call(ASKING, spec.ExchangeDelete(exchange=exchange, if_unused=if_unused), spec.ExchangeDeleteOk)

    def bind(self, queue: str, exchange: str, binding_key: str, arguments: dict[str, object] | None = None) -> None:
        """Bind a queue to an exchange (queue.bind); ``arguments``: what a headers exchange matches.

        Raises:
            NotFound: no such queue or exchange.
        """
        method = spec.QueueBind(queue=queue, exchange=exchange, routing_key=binding_key, arguments=arguments or {})
        self._driver.call(ASKING, method, spec.QueueBindOk)

    def unbind(self, queue: str, exchange: str, binding_key: str, arguments: dict[str, object] | None = None) -> None:
        """Remove a binding of a queue (queue.unbind). RabbitMQ takes one that does not exist without an error."""
        method = spec.QueueUnbind(queue=queue, exchange=exchange, routing_key=binding_key, arguments=arguments or {})
        self._driver.call(ASKING, method, spec.QueueUnbindOk)

    def bind_exchange(
        self, destination: str, source: str, binding_key: str, arguments: dict[str, object] | None = None
    ) -> None:
        """Let exchange ``source`` route to exchange ``destination`` (exchange.bind, an extension of RabbitMQ).

        Raises:
            UsageError: the broker does not have it.
            NotFound: no such exchange.
        """
        self._check_exchange_bindings()
        method = spec.ExchangeBind(
            destination=destination, source=source, routing_key=binding_key, arguments=arguments or {}
        )
        self._driver.call(ASKING, method, spec.ExchangeBindOk)

    def unbind_exchange(
        self, destination: str, source: str, binding_key: str, arguments: dict[str, object] | None = None
    ) -> None:
        """Remove a binding between exchanges (exchange.unbind, an extension of RabbitMQ).

        Raises:
            UsageError: the broker does not have it.
        """
        self._check_exchange_bindings()
        method = spec.ExchangeUnbind(
            destination=destination, source=source, routing_key=binding_key, arguments=arguments or {}
        )
        self._driver.call(ASKING, method, spec.ExchangeUnbindOk)

    def _check_exchange_bindings(self) -> None:
        """Refuse what Broker-J answers with the end of the connection."""
        if not self._driver.connection.peer_capabilities.get(spec.Capability.EXCHANGE_EXCHANGE_BINDINGS):
            raise not_supported("A binding between exchanges", self._driver.connection.version, "Bind a queue instead")

    def query_routes(self, targets: Sequence[Target]) -> RouteQueries:
        """Query targets of messages, without waiting for the answers (passive declarations).

        An exchange exists or not; its type is not known. Bindings cannot be queried: their answer is ``False``, as for
        everything that is not certain.
        """
        return RouteQueries(self._driver, targets)


class RouteQueries:
    """Queries that were sent together; made by :meth:`Topology.query_routes`. Not thread-safe.

    Each target that does not exist closes the channel, so that the queries after it are sent again.
    """

    def __init__(self, driver: Driver, targets: Sequence[Target]) -> None:
        self._driver = driver
        self._targets = targets
        self._found: dict[Target, Route] = {}
        self._due = [target for target in dict.fromkeys(targets) if _query(*target) is not None]
        self._sent: list[Request] = []
        self._send()

    @property
    def arrived(self) -> bool:
        """Whether every answer has arrived, as far as was read."""
        self._take()
        return not self._due

    def answers(self) -> list[Route]:
        """Wait for every answer and return the routes in the order of the targets; call it once.

        Raises:
            DeadlineExceeded: the answers do not arrive within the call timeout.
            UnauthorizedAccess, CommandFailed: the broker refuses a query.
            AmqpError: the connection has ended.
        """
        while not self.arrived:
            self._driver.wait_done(self._sent[-1])
        return [self._found.get(target, Route(exists=False)) for target in self._targets]

    def _send(self) -> None:
        if not self._due:
            return
        self._driver.open_channel(ASKING)
        queries = [_query(*target) for target in self._due]
        self._sent = [self._driver.request(ASKING, query) for query in queries if query is not None]

    def _take(self) -> None:
        """Take the answers that have arrived; after a refusal, send the queries behind it again."""
        while self._sent and self._sent[0].is_done:
            request = self._sent.pop(0)
            if request.error is not None and not request.refused:  # an earlier request of another caller was refused
                self._send()
                return
            if isinstance(request.error, NotFound):
                self._found[self._due.pop(0)] = Route(exists=False)
                self._send()
                return
            if request.error is not None:
                raise request.error
            self._found[self._due.pop(0)] = Route(exists=True)


def _query(exchange: str, key: str | None) -> spec.Method | None:
    """The passive declaration that answers a target; ``None`` if none does."""
    if not exchange and key is not None:
        return spec.QueueDeclare(queue=key, passive=True)
    return _passive(exchange) if key is None else None


def not_supported(what: str, protocol: str, action: str = "Leave it out") -> UsageError:
    """The error for what the protocol, or the broker, does not have."""
    reason = "the broker has no such method"
    return UsageError(CoreCondition.NOT_SUPPORTED(what=what, protocol=protocol, reason=reason, action=action))


def _passive(exchange: str) -> spec.ExchangeDeclare:
    return spec.ExchangeDeclare(exchange=exchange, passive=True)
