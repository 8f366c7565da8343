"""What is in the store becomes virtual hosts again."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from amqp_core.broker.model.arguments import DELETED
from amqp_core.broker.model.branches import Xid
from amqp_core.broker.model.messages import Death, Message
from amqp_core.broker.store.arguments import loads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from amqp_core.broker.model.entries import Entry
    from amqp_core.broker.model.messages import Wire
    from amqp_core.broker.model.queues import Queue
    from amqp_core.broker.model.virtual_host import VirtualHost
    from amqp_core.broker.store.database import Database
    from amqp_core.broker.store.records import Records


class _Orphans(NamedTuple):
    """What was held of a deleted queue when the process ended."""

    host: VirtualHost
    records: Records
    entries: list[Entry]


class Restoring:
    """Reads a store once, at its start.

    Args:
        place: the virtual host of a name and its records; it keeps no journal yet.
        wires: of the protocols, by name.
        now: seconds since 1970.
    """

    def __init__(
        self,
        database: Database,
        place: Callable[[str], tuple[VirtualHost, Records]],
        wires: Mapping[str, Wire],
        now: float,
    ) -> None:
        self._database = database
        self._place = place
        self._wires = wires
        self._now = now
        self._queues: dict[int, Queue] = {}
        self._orphans: dict[Queue, _Orphans] = {}
        self._messages: dict[int, Message] = {}
        self._entries: dict[int, Entry] = {}
        self._needs: Counter[int] = Counter()
        """By id of a message: how many entries and branches need it."""

    def run(self) -> None:
        """Restore everything.

        Raises:
            StoreError: the file is damaged.
            ValueError, LookupError, Refused: it does not hold what this version writes.
        """
        self._restore_exchanges()
        self._restore_queues()
        self._restore_bindings()
        for number, *columns in self._rows(
            "messages", "id, protocol, exchange, routing_key, header, body, persistent, priority, ttl_ms, deaths"
        ):
            self._messages[number] = self._message(number, *columns)
        prepared = {entry for (entry,) in self._rows("branch_entries", "entry")}
        self._restore_entries(prepared)
        self._restore_branches()

    def pass_on(self) -> None:
        """Let what was held of deleted queues go to their alternate exchanges; the journals are kept before."""
        for queue, (host, records, entries) in self._orphans.items():
            host.release(entries, now=self._now)
            if not queue.unsettled_count:  # else a prepared branch has the rest
                records.queue_left(queue)

    def copies(self) -> dict[int, int]:
        """How many entries and branches need a message, by its id, where these are more than one."""
        return {number: count for number, count in self._needs.items() if count > 1}

    def unneeded(self) -> tuple[list[int], list[int]]:
        """Ids of entries whose queue was deleted while they were held, and of messages that nothing needs."""
        gone = [number for (number,) in self._rows("entries", "id") if number not in self._entries]
        return gone, [number for number in self._messages if not self._needs[number]]

    def _restore_exchanges(self) -> None:
        columns = "id, host, name, kind, auto_delete, internal, alternate, arguments"
        for number, host, name, kind, auto_delete, internal, alternate, arguments in self._rows("exchanges", columns):
            place, records = self._place(host)
            exchange = place.restore_exchange(
                name,
                kind,
                auto_delete=bool(auto_delete),
                internal=bool(internal),
                alternate=alternate,
                arguments=loads(arguments),
            )
            records.known[exchange] = number

    def _restore_queues(self) -> None:
        for number, host, name, auto_delete, arguments in self._rows(
            "queues", "id, host, name, auto_delete, arguments"
        ):
            place, records = self._place(host)
            given = loads(arguments)
            deleted = bool(given.pop(DELETED, False))
            queue = place.restore_queue(
                name, auto_delete=bool(auto_delete), arguments=given, now=self._now, deleted=deleted
            )
            if deleted:
                queue.journal = records
                self._orphans[queue] = _Orphans(place, records, [])
            (records.left if deleted else records.known)[queue] = number
            self._queues[number] = queue

    def _restore_bindings(self) -> None:
        columns = "id, host, source, to_queue, destination, key, arguments"
        for number, host, source, to_queue, destination, key, arguments in self._rows("bindings", columns):
            place, records = self._place(host)
            target = place.queues[destination] if to_queue else place.exchanges[destination]
            records.known[place.restore_binding(source, target, key, loads(arguments))] = number

    def _message(self, number: int, *columns: Any) -> Message:
        protocol, exchange, routing_key, header, body, persistent, priority, ttl_ms, deaths = columns
        message = Message(
            self._wires[protocol],
            exchange,
            routing_key if isinstance(routing_key, str) else routing_key.decode("utf-8", "surrogateescape"),
            header,
            body,
            persistent=bool(persistent),
            priority=priority,
            ttl_ms=ttl_ms,
            deaths=tuple(Death(*each) for each in _tuples(json.loads(deaths))),
        )
        message.record = number
        return message

    def _restore_entries(self, prepared: set[int]) -> None:
        """Put messages into their queues; those whose queue was deleted while they were held are passed over."""
        columns = "id, queue, sequence, message, expires, returns"
        for number, place, sequence, message, expires, returns in self._rows("entries", columns, "queue, sequence"):
            if place not in self._queues:
                continue
            self._needs[message] += 1
            queue = self._queues[place]
            self._entries[number] = queue.restore(
                self._messages[message],
                sequence=sequence,
                expires=expires,
                returns=returns,
                record=number,
                held=number in prepared or queue.deleted,
            )
            if queue.deleted and number not in prepared:
                self._orphans[queue].entries.append(self._entries[number])

    def _restore_branches(self) -> None:
        published: dict[int, dict[Message, list[Queue]]] = {}
        for branch, message, queue in self._rows("branch_messages", "branch, message, queue", "id"):
            queues = published.setdefault(branch, {}).setdefault(self._messages[message], [])
            if queue in self._queues:  # else it was deleted while the branch was prepared
                queues.append(self._queues[queue])
        accepted: dict[int, list[Entry]] = {}
        for branch, entry in self._rows("branch_entries", "branch, entry", "id"):
            if entry in self._entries:
                accepted.setdefault(branch, []).append(self._entries[entry])
        for number, host, *xid in self._rows("branches", "id, host, format, global_id, branch_id"):
            place, records = self._place(host)
            messages = published.get(number, {})
            branch = place.branches.restore(Xid(*xid), messages.items(), accepted.get(number, []))
            records.known[branch] = number
            records.needed[branch] = list(messages)
            for message in messages:
                place.memory.uncommitted.take(message)
            self._needs.update(message.record for message in messages)

    def _rows(self, table: str, columns: str, order: str = "id") -> Iterator[tuple[Any, ...]]:
        return self._database.select(table, columns, order)


def _tuples(value: Any) -> Any:
    """JSON lists as the tuples that they were."""
    return tuple(_tuples(each) for each in value) if isinstance(value, list) else value
