"""The journal of one virtual host: durable changes become rows."""

from __future__ import annotations

import json
from dataclasses import astuple
from typing import TYPE_CHECKING, Final

from amqp_core.broker.model.arguments import DELETED
from amqp_core.broker.model.exchanges import Exchange
from amqp_core.broker.properties import text_or_octets
from amqp_core.broker.store.arguments import dumps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from amqp_core.broker.model.branches import Branch
    from amqp_core.broker.model.entries import Entry
    from amqp_core.broker.model.exchanges import Binding
    from amqp_core.broker.model.messages import Message, Wire
    from amqp_core.broker.model.queues import Queue
    from amqp_core.broker.store.changes import Changes

_MOST_TTL: Final = (1 << 63) - 1
"""The greatest integer of SQLite, which is forever in milliseconds; clients may send greater ones."""


class Records:
    """Takes note of what a virtual host changes (``Journal``).

    Args:
        host: its name.
        changes: of the store.
        number: makes a new id in a table.
        protocols: names of the wires.
        copies: by id of a message, how many entries and branches need it, if more than one.
    """

    def __init__(
        self,
        host: str,
        changes: Changes,
        number: Callable[[str], int],
        protocols: Mapping[Wire, str],
        copies: dict[int, int],
    ) -> None:
        self._host = host
        self._changes = changes
        self._number = number
        self._protocols = protocols
        self.known: dict[Exchange | Queue | Binding | Branch, int] = {}
        """Ids of what has a row."""
        self.needed: dict[Branch, list[Message]] = {}
        """The messages of prepared branches that have rows."""
        self.left: dict[Queue, int] = {}
        """Ids of queues that were deleted while messages in them were held, which are to be passed on."""
        self._copies = copies

    def exchange_added(self, exchange: Exchange) -> None:
        """A durable exchange was declared."""
        self._changes.do(
            "INSERT INTO exchanges VALUES (?,?,?,?,?,?,?,?)",
            self._new("exchanges", exchange), self._host, exchange.name, exchange.kind, exchange.auto_delete,
            exchange.internal, exchange.alternate, dumps(exchange.arguments),
        )  # fmt: skip

    def exchange_removed(self, exchange: Exchange) -> None:
        """A durable exchange is gone."""
        self._changes.do("DELETE FROM exchanges WHERE id = ?", self.known.pop(exchange))

    def queue_added(self, queue: Queue) -> None:
        """A queue was declared that outlives the process."""
        self._changes.do(
            "INSERT INTO queues VALUES (?,?,?,?,?)",
            self._new("queues", queue), self._host, queue.name, queue.auto_delete, dumps(queue.arguments),
        )  # fmt: skip

    def queue_removed(self, queue: Queue) -> None:
        """Such a queue is gone."""
        number = self.known.pop(queue)
        if queue.passes_on and queue.unsettled_count:
            self.left[queue] = number
            arguments = {**queue.arguments, DELETED: True}
            self._changes.do("UPDATE queues SET arguments = ? WHERE id = ?", dumps(arguments), number)
        else:
            self._changes.do("DELETE FROM queues WHERE id = ?", number)
        # a later queue may get the number: a prepared branch must not publish to that one
        self._changes.do("DELETE FROM branch_messages WHERE queue = ?", number)

    def queue_left(self, queue: Queue) -> None:
        """Nothing of a queue that is gone is held any more."""
        if queue in self.left:
            self._changes.do("DELETE FROM queues WHERE id = ?", self.left.pop(queue))

    def binding_added(self, binding: Binding) -> None:
        """A binding was made that outlives the process."""
        destination = binding.destination
        self._changes.do(
            "INSERT INTO bindings VALUES (?,?,?,?,?,?,?)",
            self._new("bindings", binding), self._host, binding.source.name, not isinstance(destination, Exchange),
            destination.name, binding.key, dumps(binding.arguments),
        )  # fmt: skip

    def binding_removed(self, binding: Binding) -> None:
        """Such a binding is gone."""
        self._changes.do("DELETE FROM bindings WHERE id = ?", self.known.pop(binding))

    def message_added(self, entry: Entry) -> None:
        """A persistent message is in a queue."""
        entry.record = self._number("entries")
        self._need(entry.message)
        self._changes.add(
            "entries", entry.record, self.known[entry.queue], entry.sequence, entry.message.record, entry.expires, 0
        )

    def message_removed(self, entry: Entry) -> None:
        """It has left the queue."""
        self._changes.remove("entries", entry.record)
        entry.record = 0
        self._spare(entry.message)

    def message_returned(self, entry: Entry) -> None:
        """It came back."""
        self._changes.do("UPDATE entries SET returns = ? WHERE id = ?", entry.returns, entry.record)

    def branch_prepared(self, branch: Branch) -> None:
        """A branch of a distributed transaction is prepared: it outlives the process with all that is in it."""
        number = self._new("branches", branch)
        self._changes.do("INSERT INTO branches VALUES (?,?,?,?,?)", number, self._host, *branch.xid)
        needed = self.needed[branch] = []
        for message, queues in branch.published:
            kept = [self.known[queue] for queue in queues if queue in self.known]
            if kept:
                self._need(message)
                needed.append(message)
            for queue in kept:
                self._changes.do(
                    "INSERT INTO branch_messages (branch, message, queue) VALUES (?,?,?)", number, message.record, queue
                )
        for entry in branch.accepted:
            if entry.record:
                self._changes.do("INSERT INTO branch_entries (branch, entry) VALUES (?,?)", number, entry.record)

    def branch_ended(self, branch: Branch) -> None:
        """A prepared branch is committed or rolled back."""
        number = self.known.pop(branch)
        self._changes.do("DELETE FROM branches WHERE id = ?", number)
        self._changes.do("DELETE FROM branch_messages WHERE branch = ?", number)
        self._changes.do("DELETE FROM branch_entries WHERE branch = ?", number)
        for message in self.needed.pop(branch):
            self._spare(message)

    def _new(self, table: str, what: Exchange | Queue | Binding | Branch) -> int:
        number = self.known[what] = self._number(table)
        return number

    def _need(self, message: Message) -> None:
        """One entry or branch more needs a message."""
        if message.record:
            self._copies[message.record] = self._copies.get(message.record, 1) + 1
            return
        message.record = self._number("messages")
        ttl_ms = None if message.ttl_ms is None else min(message.ttl_ms, _MOST_TTL)
        deaths = json.dumps([astuple(each) for each in message.deaths]) if message.deaths else "[]"
        self._changes.add(
            "messages", message.record, self._protocols[message.wire], message.exchange,
            text_or_octets(message.routing_key), message.header, message.body, message.persistent, message.priority,
            ttl_ms, deaths,
        )  # fmt: skip

    def _spare(self, message: Message) -> None:
        """One less needs it."""
        copies = self._copies.pop(message.record, 1)
        if copies > 2:
            self._copies[message.record] = copies - 1
        elif copies == 1:
            self._changes.remove("messages", message.record)
            message.record = 0
