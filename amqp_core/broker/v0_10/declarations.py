"""Commands of the classes exchange and queue, for one session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from amqp_core.broker.model.errors import Refusal, Refused
from amqp_core.broker.v0_10.arguments import alternate_of, declared_arguments, model_arguments
from amqp_core.broker.v0_10.bindings import matches_of
from amqp_core.broker.v0_10.errors import Code, Failed, named
from amqp_core.v0_10 import spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.broker.model.exchanges import Binding, Exchange
    from amqp_core.broker.model.queues import Queue
    from amqp_core.broker.model.virtual_host import VirtualHost
    from amqp_core.broker.rights import Rights


class Declarations:
    """What a session declares, deletes, binds and asks.

    Args:
        owner: of exclusive queues: the session.
        clock: the time of the model, in seconds.
        rights: of the login.
    """

    def __init__(self, host: VirtualHost, owner: object, clock: Callable[[], float], rights: Rights) -> None:
        self._host = host
        self._rights = rights
        self._owner = owner
        self._clock = clock

    def end(self) -> None:
        """The session ends: exclusive queues are deleted, or anybody's (0-10 section queue.declare, auto-delete)."""
        self._host.close(self._owner, now=self._clock())

    # --- exchange

    def declare_exchange(self, command: spec.ExchangeDeclare) -> None:
        """exchange.declare: of one that exists (the default exchange does) only type and alternate exchange count."""
        name = command.exchange or ""
        existing = self._host.exchanges.get(name)
        if command.passive:
            self._rights.see_exchange(name)
        else:
            alternate = None
            if existing is None:
                alternate = command.alternate_exchange or (command.arguments or {}).get("alternate-exchange")
            self._rights.declare_exchange(name, alternate=alternate)
        if command.passive or existing is not None:
            existing = self._host.declare_exchange(name, "", passive=True)
            if command.type and command.type != existing.kind:
                text = f"exchange '{name}' is of type {existing.kind}, not {command.type}"
                raise Failed(Code.NOT_ALLOWED, text)
            if command.alternate_exchange and command.alternate_exchange != existing.alternate:
                raise Failed(Code.NOT_ALLOWED, f"exchange '{name}' has another alternate exchange")
            return
        if command.alternate_exchange:
            self._exchange(command.alternate_exchange)
        try:
            self._host.declare_exchange(
                name,
                command.type or "",
                durable=command.durable,
                auto_delete=command.auto_delete,
                alternate=command.alternate_exchange or None,
                arguments=command.arguments,
            )
        except Refused as refused:
            if refused.reason is Refusal.NOT_IMPLEMENTED:  # 0-10 section exchange.declare, exchange-type-not-found
                raise Failed(Code.NOT_FOUND, refused.text) from refused
            raise

    def delete_exchange(self, command: spec.ExchangeDelete) -> None:
        """exchange.delete."""
        name = named(command.exchange, "the name of an exchange")
        self._rights.delete_exchange(name)
        self._exchange(name)
        users = [f"exchange '{each.name}'" for each in self._host.exchanges.values() if each.alternate == name]
        users += [f"queue '{each.name}'" for each in self._host.queues.values() if alternate_of(each) == name]
        if users:
            raise Failed(Code.NOT_ALLOWED, f"exchange '{name}' is the alternate exchange of {users[0]}")
        self._host.delete_exchange(name, if_unused=command.if_unused)

    def query_exchange(self, command: spec.ExchangeQuery) -> spec.ExchangeQueryResult:
        """exchange.query."""
        self._rights.see_exchange(command.name or "")
        exchange = self._host.exchanges.get(command.name or "")
        if exchange is None:
            return spec.ExchangeQueryResult(not_found=True)
        return spec.ExchangeQueryResult(type=exchange.kind, durable=exchange.durable, arguments=exchange.arguments)

    def bind(self, command: spec.ExchangeBind) -> None:
        """exchange.bind: what is bound with the same key stays as it is, whatever its arguments."""
        queue, exchange, key = self._bindable(command)
        if not self._bindings(queue, exchange, key):
            arguments = command.arguments
            self._host.bind_queue(queue.name, exchange.name, key, owner=self._owner, arguments=arguments)

    def unbind(self, command: spec.ExchangeUnbind) -> None:
        """exchange.unbind."""
        queue, exchange, key = self._bindable(command)
        bindings = self._bindings(queue, exchange, key)
        if not bindings:
            text = f"queue '{queue.name}' is not bound to exchange '{exchange.name}' with key '{key}'"
            raise Failed(Code.NOT_FOUND, text)
        for each in bindings:
            self._host.unbind_queue(queue.name, exchange.name, key, owner=self._owner, arguments=each.arguments)

    def bound(self, command: spec.ExchangeBound) -> spec.ExchangeBoundResult:
        """exchange.bound."""
        self._rights.see_exchange(command.exchange or "")
        if command.queue:
            self._rights.see_queue(command.queue)
        exchange = self._host.exchanges.get(command.exchange or "")
        queue = self._host.queues.get(command.queue) if command.queue else None
        if exchange is None or (command.queue and queue is None):
            return spec.ExchangeBoundResult(
                exchange_not_found=exchange is None, queue_not_found=bool(command.queue) and queue is None
            )
        return matches_of(self._host, exchange, queue, command.binding_key, command.arguments)

    # --- queue

    def declare_queue(self, command: spec.QueueDeclare) -> None:
        """queue.declare: of a queue that exists only owner and alternate exchange count; one without owner gets one."""
        name = named(command.queue, "the name of a queue")
        self._check_rights(name, command)
        if command.passive or name in self._host.queues:
            self._check_queue(self._host.queue(name, self._owner), command)
            return
        if command.alternate_exchange:
            self._exchange(command.alternate_exchange)
        lifetime = command.exclusive and command.auto_delete
        self._host.declare_queue(
            name,
            owner=self._owner,
            durable=command.durable,
            exclusive=command.exclusive,
            auto_delete=command.auto_delete and not lifetime,
            outlives_owner=not lifetime,
            arguments=model_arguments(command.arguments or {}, command.alternate_exchange),
            now=self._clock(),
        )

    def delete_queue(self, command: spec.QueueDelete) -> None:
        """queue.delete."""
        name = named(command.queue, "the name of a queue")
        self._rights.delete_queue(name)
        queue = self._host.queue(name, self._owner)
        if command.if_unused and queue.consumer_count:
            text = f"queue '{queue.name}' is in use: {queue.consumer_count} subscriptions"
            raise Failed(Code.PRECONDITION_FAILED, text)
        if command.if_empty and queue.message_count:
            text = f"queue '{queue.name}' is not empty: {queue.message_count} messages"
            raise Failed(Code.PRECONDITION_FAILED, text)
        self._host.delete_queue(name, owner=self._owner)

    def purge_queue(self, command: spec.QueuePurge) -> None:
        """queue.purge."""
        name = named(command.queue, "the name of a queue")
        self._rights.consume(name)
        self._host.purge_queue(name, owner=self._owner)

    def query_queue(self, command: spec.QueueQuery) -> spec.QueueQueryResult:
        """queue.query: its messages include those that are acquired, as on Broker-J."""
        self._rights.see_queue(command.queue or "")
        queue = self._host.queues.get(command.queue or "")
        if queue is None:
            return spec.QueueQueryResult()
        return spec.QueueQueryResult(
            queue=queue.name,
            alternate_exchange=alternate_of(queue),
            durable=queue.durable,
            exclusive=queue.exclusive is not None,
            auto_delete=queue.auto_delete or (queue.exclusive is not None and not queue.outlives_owner),
            arguments=declared_arguments(queue),
            message_count=queue.message_count + queue.unsettled_count,
            subscriber_count=queue.consumer_count,
        )

    # --- internals

    def _check_rights(self, name: str, command: spec.QueueDeclare) -> None:
        if command.passive:
            self._rights.see_queue(name)
            return
        exchange: object = None
        if name not in self._host.queues:
            exchange = command.alternate_exchange or (command.arguments or {}).get("x-dead-letter-exchange")
        self._rights.declare_queue(name, dead_letters_to=exchange)

    def _check_queue(self, queue: Queue, command: spec.QueueDeclare) -> None:
        if command.passive:
            return
        if command.alternate_exchange and command.alternate_exchange != alternate_of(queue):
            raise Failed(Code.NOT_ALLOWED, f"queue '{queue.name}' has another alternate exchange")
        if command.exclusive:  # also one whose owner is gone: so a durable subscription of JMS goes on
            self._host.claim_queue(queue.name, self._owner)

    def _exchange(self, name: str) -> Exchange:
        return self._host.declare_exchange(name, "", passive=True)

    def _bindable(self, command: spec.ExchangeBind | spec.ExchangeUnbind) -> tuple[Queue, Exchange, str]:
        queue_name = named(command.queue, "the name of a queue")
        exchange_name = named(command.exchange, "the name of an exchange")
        self._rights.bind_queue(queue_name, exchange_name)
        queue = self._host.queue(queue_name, self._owner)
        exchange = self._exchange(exchange_name)
        return queue, exchange, command.binding_key or ""

    @staticmethod
    def _bindings(queue: Queue, exchange: Exchange, key: str) -> list[Binding]:
        return [each for each in queue.incoming if each.source is exchange and each.key == key]


HANDLERS: Final[dict[type[spec.Command], Callable[..., Any]]] = {
    spec.ExchangeDeclare: Declarations.declare_exchange,
    spec.ExchangeDelete: Declarations.delete_exchange,
    spec.ExchangeQuery: Declarations.query_exchange,
    spec.ExchangeBind: Declarations.bind,
    spec.ExchangeUnbind: Declarations.unbind,
    spec.ExchangeBound: Declarations.bound,
    spec.QueueDeclare: Declarations.declare_queue,
    spec.QueueDelete: Declarations.delete_queue,
    spec.QueuePurge: Declarations.purge_queue,
    spec.QueueQuery: Declarations.query_queue,
}
