"""Exchanges, queues and bindings of a virtual host, and where a message goes.

The journal hears of each durable change here, also of those that follow from another: a queue that is deleted takes
its bindings with it, and exchanges that nothing is bound to any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_core.broker.model.errors import Refusal, Refused
from amqp_core.broker.model.exchanges import Exchange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqp_core.broker.model.exchanges import Binding
    from amqp_core.broker.model.journal import Journal
    from amqp_core.broker.model.messages import Message
    from amqp_core.broker.model.queues import Queue

# Keys that never come again would fill the memory; then it is emptied.
_MOST_ROUTES = 20_000


class Topology:
    """What is declared. Names are checked by the caller."""

    def __init__(self) -> None:
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        self._routes: dict[str, dict[str, Sequence[Queue]]] = {}
        """Results by exchange and routing key, until something changes."""
        self._route_count = 0
        self.journal: Journal | None = None
        """Notes what is durable."""

    def exchange(self, name: str) -> Exchange:
        """The exchange of that name.

        Raises:
            Refused: NOT_FOUND.
        """
        try:
            return self.exchanges[name]
        except KeyError:
            raise Refused(Refusal.NOT_FOUND, f"There is no exchange '{name}'") from None

    def queue(self, name: str) -> Queue:
        """The queue of that name.

        Raises:
            Refused: NOT_FOUND.
        """
        try:
            return self.queues[name]
        except KeyError:
            raise Refused(Refusal.NOT_FOUND, f"There is no queue '{name}'") from None

    def add_exchange(self, exchange: Exchange) -> None:
        """Add an exchange. Another may have named it as its alternate before."""
        self.exchanges[exchange.name] = exchange
        if self.journal is not None and exchange.durable:
            self.journal.exchange_added(exchange)
        self._forget_routes()

    def remove_exchange(self, exchange: Exchange) -> None:
        """Remove an exchange with its bindings, and auto-delete exchanges that have lost their last one by that."""
        waiting = [exchange]
        while waiting:
            removed = waiting.pop()
            if self.exchanges.get(removed.name) is not removed:
                continue  # in a cycle, or twice bound
            del self.exchanges[removed.name]
            if self.journal is not None and removed.durable:
                self.journal.exchange_removed(removed)
            for binding in list(removed.bindings.values()):
                self._take_out(binding)
            waiting += self._take_out_incoming(removed)
        self._forget_routes()

    def add_queue(self, queue: Queue) -> None:
        """Add a queue; the default exchange passes it what is sent to its name."""
        self.queues[queue.name] = queue
        if self.journal is not None and queue.is_kept:
            queue.journal = self.journal
            self.journal.queue_added(queue)
        self._forget_routes()

    def remove_queue(self, queue: Queue) -> None:
        """Remove a queue with its bindings, and auto-delete exchanges that have lost their last one by that."""
        del self.queues[queue.name]
        if self.journal is not None and queue.is_kept:
            self.journal.queue_removed(queue)
        for exchange in self._take_out_incoming(queue):
            self.remove_exchange(exchange)
        self._forget_routes()

    def add_binding(self, binding: Binding) -> None:
        """Add a binding, unless there is one that is equal.

        Raises:
            Refused: PRECONDITION_FAILED, arguments that its exchange cannot use.
        """
        if binding.source.add(binding):
            binding.destination.incoming[binding] = None
            if self.journal is not None and is_kept(binding):
                self.journal.binding_added(binding)
            self._forget_routes()

    def remove_binding(self, binding: Binding) -> None:
        """Remove the binding that is equal to this one, if any. An auto-delete exchange goes with its last one."""
        existing = binding.source.bindings.get(binding.identity)
        if existing is None:
            return
        self._take_out(existing)
        if _unused(existing.source):
            self.remove_exchange(existing.source)
        self._forget_routes()

    def _take_out(self, binding: Binding) -> None:
        binding.source.remove(binding)
        del binding.destination.incoming[binding]
        if self.journal is not None and is_kept(binding):
            self.journal.binding_removed(binding)

    def _take_out_incoming(self, destination: Queue | Exchange) -> list[Exchange]:
        """Remove the bindings to a destination; return exchanges that are to be removed by that."""
        bindings = list(destination.incoming)
        for binding in bindings:
            self._take_out(binding)
        return [exchange for exchange in dict.fromkeys(binding.source for binding in bindings) if _unused(exchange)]

    def route(self, message: Message) -> Sequence[Queue]:
        """The queues that a message goes to, each once, whatever its exchange is.

        Raises:
            Refused: NOT_FOUND, there is no such exchange.
        """
        try:
            return self._routes[message.exchange][message.routing_key]
        except KeyError:
            pass
        queues, by_key = self._follow(self.exchange(message.exchange), message)
        if by_key:
            if self._route_count >= _MOST_ROUTES:
                self._forget_routes()
            self._routes.setdefault(message.exchange, {})[message.routing_key] = queues
            self._route_count += 1
        return queues

    def _follow(self, first: Exchange, message: Message) -> tuple[Sequence[Queue], bool]:
        """Go through the exchanges; return the queues, and whether they depend on exchange and key only."""
        queues: dict[Queue, None] = {}
        waiting = [first]
        seen = {first.name}
        by_key = True
        while waiting:
            exchange = waiting.pop()
            by_key = by_key and exchange.by_key
            found: list[Queue | Exchange]
            if exchange.name:
                found = [binding.destination for binding in exchange.matches(message)]
            else:
                named = self.queues.get(message.routing_key)
                found = [] if named is None else [named]
            if not found and exchange.alternate in self.exchanges:
                found = [self.exchanges[exchange.alternate]]
            for each in found:
                if not isinstance(each, Exchange):
                    queues[each] = None
                elif each.name not in seen:
                    seen.add(each.name)
                    waiting.append(each)
        return tuple(queues), by_key

    def _forget_routes(self) -> None:
        self._routes.clear()
        self._route_count = 0


def is_kept(binding: Binding) -> bool:
    """Whether a binding outlives the process, if there is a store."""
    destination = binding.destination
    kept = destination.durable if isinstance(destination, Exchange) else destination.is_kept
    return binding.source.durable and kept


def _unused(exchange: Exchange) -> bool:
    return exchange.auto_delete and not exchange.bindings
