"""Queues, exchanges and bindings (0-10 sections queue and exchange), and queries about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_core.client_base import BaseClient
from amqp_core.v0_10 import spec
from amqp_core.v0_10.driver import Driver
from amqp_core.v0_10.queries import Questions, RouteQueries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqp_core.api import Target
    from amqp_core.v0_10.queries import Question


class Topology(BaseClient[Driver]):
    """Declares, queries and deletes queues, exchanges and bindings. Not thread-safe.

    Every call raises what :class:`.Client` says; a command that the broker refuses ends the session.
    """

    def query_queue(self, queue: str) -> spec.QueueQueryResult | None:
        """Return the result of queue.query; ``None`` if there is no such queue.

        Raises:
            UnauthorizedAccess: the login may not query it.
            CommandFailed, DeadlineExceeded, ConnectionLost, ...: as every call, see :class:`.Client`.
        """
        result = self._driver.ask(spec.QueueQuery(queue=queue), spec.QueueQueryResult)
        # for an unknown queue the result is a struct without any field set
        return result if result != spec.QueueQueryResult() else None

    def query_exchange(self, exchange: str) -> spec.ExchangeQueryResult | None:
        """Return the result of exchange.query; ``None`` if there is no such exchange.

        Raises:
            UnauthorizedAccess: the login may not query it.
            CommandFailed, DeadlineExceeded, ConnectionLost, ...: as every call, see :class:`.Client`.
        """
        result = self._driver.ask(spec.ExchangeQuery(name=exchange), spec.ExchangeQueryResult)
        return result if not result.not_found else None

    def ask(self, questions: Sequence[Question]) -> Questions:
        """Send several queries at once (exchange.query, queue.query, exchange.bound), without waiting for answers.

        Raises:
            ConnectionLost, SessionDetached, CommandFailed: the connection or session has ended.
        """
        return Questions(self._driver, questions)

    def declare_queue(
        self,
        queue: str,
        *,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        passive: bool = False,
        alternate_exchange: str | None = None,
        arguments: dict[str, object] | None = None,
    ) -> None:
        """Declare a queue (0-10 section queue.declare). If the queue exists, brokers ignore differing arguments.

        Args:
            queue: its name, at most 255 bytes of UTF-8.
            durable: it survives a restart of the broker.
            exclusive: only this session may use it.
            auto_delete: it is deleted when its last subscription, or its exclusive session, ends.
            passive: only check that it exists.
            alternate_exchange: exchange for rejected and orphaned messages.
            arguments: arguments of the broker, such as ``qpid.max_count``.

        Raises:
            ResourceLocked: another connection holds it exclusively.
            NotFound: ``passive`` is set, and the queue does not exist.
            UnauthorizedAccess: the login may not create it.
            EncodeError: a value does not fit its wire type.
            CommandFailed, DeadlineExceeded, ConnectionLost, ...: as every call, see :class:`.Client`.
        """
        self._driver.call(
            spec.QueueDeclare(
                queue=queue,
                alternate_exchange=alternate_exchange,
                passive=passive,
                durable=durable,
                exclusive=exclusive,
                auto_delete=auto_delete,
                arguments=arguments,
            )
        )

    def declare_lock(self, queue: str) -> None:
        """Create a queue that only this session may use, and that ends with it (queue.declare, exclusive, auto-delete).

        Raises:
            ResourceLocked: another session has it; this session has ended.
        """
        self.declare_queue(queue, exclusive=True, auto_delete=True)

    def delete_queue(self, queue: str, *, if_unused: bool = False, if_empty: bool = False) -> None:
        """Delete a queue with its messages (queue.delete).

        Args:
            queue: its name.
            if_unused: refuse while it has subscriptions.
            if_empty: refuse while it has messages.

        Raises:
            NotFound: no such queue.
            PreconditionFailed, ResourceLocked: it is used, or not empty.
            CommandFailed, DeadlineExceeded, ConnectionLost, ...: as every call, see :class:`.Client`.
        """
        self._driver.call(spec.QueueDelete(queue=queue, if_unused=if_unused, if_empty=if_empty))

    def purge_queue(self, queue: str) -> None:
        """Remove every message that no consumer has acquired (queue.purge).

        Raises:
            NotFound: no such queue.
            CommandFailed, DeadlineExceeded, ConnectionLost, ...: as every call, see :class:`.Client`.
        """
        self._driver.call(spec.QueuePurge(queue=queue))

    def declare_exchange(
        self,
        exchange: str,
        kind: str,
        *,
        durable: bool = False,
        auto_delete: bool = False,
        passive: bool = False,
        alternate_exchange: str | None = None,
        arguments: dict[str, object] | None = None,
    ) -> None:
        """Declare an exchange (0-10 section exchange.declare).

        Args:
            exchange: its name.
            kind: direct, topic, fanout, headers, or a type of the broker.
            durable: it survives a restart of the broker.
            auto_delete: it is deleted when its last queue is unbound.
            passive: only check that it exists.
            alternate_exchange: exchange for messages that it cannot route.
            arguments: arguments of the broker.

        Raises:
            NotFound: ``passive`` is set, and it does not exist.
            NotAllowed: it exists with another type.
            CommandFailed, DeadlineExceeded, ConnectionLost, ...: as every call, see :class:`.Client`.
        """
        self._driver.call(
            spec.ExchangeDeclare(
                exchange=exchange,
                type=kind,
                alternate_exchange=alternate_exchange,
                passive=passive,
                durable=durable,
                auto_delete=auto_delete,
                arguments=arguments,
            )
        )

    def delete_exchange(self, exchange: str, *, if_unused: bool = False) -> None:
        """Delete an exchange (exchange.delete); ``if_unused``: refuse while queues are bound to it.

        Raises:
            NotFound: no such exchange.
            PreconditionFailed: it is used.
            CommandFailed, DeadlineExceeded, ConnectionLost, ...: as every call, see :class:`.Client`.
        """
        self._driver.call(spec.ExchangeDelete(exchange=exchange, if_unused=if_unused))

    def bind(self, queue: str, exchange: str, binding_key: str, arguments: dict[str, object] | None = None) -> None:
        """Bind a queue to an exchange (exchange.bind); ``arguments``: what a headers exchange matches.

        Raises:
            NotFound: no such queue or exchange.
            UnauthorizedAccess: the login may not bind them.
            CommandFailed, DeadlineExceeded, ConnectionLost, ...: as every call, see :class:`.Client`.
        """
        self._driver.call(
            spec.ExchangeBind(queue=queue, exchange=exchange, binding_key=binding_key, arguments=arguments or {})
        )

    def unbind(self, queue: str, exchange: str, binding_key: str) -> None:
        """Remove a binding (exchange.unbind).

        Raises:
            NotFound: no such queue, exchange or binding.
            CommandFailed, DeadlineExceeded, ConnectionLost, ...: as every call, see :class:`.Client`.
        """
        self._driver.call(spec.ExchangeUnbind(queue=queue, exchange=exchange, binding_key=binding_key))

    def bound(
        self, exchange: str, *, queue: str | None = None, binding_key: str | None = None
    ) -> spec.ExchangeBoundResult:
        """Query the bindings of an exchange (exchange.bound): of a queue, by a key, or both.

        Raises:
            UnauthorizedAccess: the login may not query it.
            CommandFailed, DeadlineExceeded, ConnectionLost, ...: as every call, see :class:`.Client`.
        """
        command = spec.ExchangeBound(exchange=exchange, queue=queue, binding_key=binding_key)
        return self._driver.ask(command, spec.ExchangeBoundResult)

    def is_bound(self, exchange: str, binding_key: str) -> bool:
        """Whether any queue is bound to the exchange with this key (exchange.bound). Errors: as :meth:`bound`."""
        found = self.bound(exchange, binding_key=binding_key)
        return not (found.exchange_not_found or found.key_not_matched)

    def query_routes(self, targets: Sequence[Target]) -> RouteQueries:
        """Send a query for each target at once: exchange.query, exchange.bound, or queue.query.

        Raises:
            ConnectionLost, SessionDetached, CommandFailed: the connection or session has ended.
        """
        return RouteQueries(self._driver, targets)
