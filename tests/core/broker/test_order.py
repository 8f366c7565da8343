"""Order, and nothing lost or doubled, whatever clients do in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.core.broker.model_support import ME, Host

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.broker.model.messages import Message
    from amqp_core.broker.model.queues import Consumer, Entry


class Client:
    """A consumer with credit for messages and bytes; each delivery is checked when it comes.

    With a ``parity`` it selects messages whose numbers are odd (1) or even (0).
    """

    def __init__(
        self, machine: Traffic, room: int, nbytes: int, *, browse: bool, no_ack: bool, parity: int | None
    ) -> None:
        self.machine = machine
        self.room = room
        self.nbytes = nbytes
        self.browse = browse
        self.no_ack = no_ack
        self.parity = parity
        self.held: list[Entry] = []
        self.seen: list[int] = []
        self.consumer: Consumer | None = None

    def wants(self, number: int) -> bool:
        return self.parity is None or number % 2 == self.parity

    def selects(self, message: Message) -> bool:
        return self.wants(self.machine.number_of[message.routing_key, message.body])

    def has_room(self, size: int) -> bool:
        return self.room > 0 and self.nbytes >= size

    def deliver(self, entry: Entry) -> None:
        assert self.has_room(entry.message.size)
        self.room -= 1
        self.nbytes -= entry.message.size
        number = self.machine.number_of[entry.message.routing_key, entry.message.body]
        assert self.wants(number)
        if self.browse:
            assert number in self.machine.waiting
            assert number not in self.seen
            self.seen.append(number)
            return
        self.machine.took(entry, number, self.wants)
        if self.no_ack:
            self.machine.done.add(number)
        else:
            self.held.append(entry)

    def cancelled(self) -> None:
        raise AssertionError("nobody deletes this queue")


class Traffic(RuleBasedStateMachine):
    """One queue; ``waiting``, ``held`` and ``done`` are what the test knows of its messages, by number."""

    def __init__(self) -> None:
        super().__init__()
        self.host = Host()
        self.clients: list[Client] = []
        self.gone: list[Entry] = []
        """Held by clients that were cancelled."""
        self.number_of: dict[tuple[str, bytes], int] = {}
        self.priority: dict[int, int] = {}
        self.waiting: set[int] = set()
        self.held: dict[int, Entry] = {}
        self.done: set[int] = set()
        self.returned: dict[int, int] = {}
        self.taken: set[int] = set()
        """Those that ever left the queue: one that browses may have passed their places meanwhile."""

    @initialize(max_priority=st.sampled_from([None, 1, 3]))
    def declare(self, max_priority: int | None) -> None:
        self.highest = max_priority or 0
        arguments = {} if max_priority is None else {"x-max-priority": max_priority}
        self.host.declare_queue("q", owner=ME, arguments=arguments)
        self.queue = self.host.queues["q"]

    def first(self, wants: Callable[[int], bool] = lambda _: True) -> int | None:
        """The number of the first wanted message that waits."""
        return min(filter(wants, self.waiting), key=lambda each: (-self.priority[each], each), default=None)

    def took(self, entry: Entry, number: int, wants: Callable[[int], bool] = lambda _: True) -> None:
        """A message has left the queue: it was the first wanted of those that waited."""
        assert number == self.first(wants)
        assert entry.returns == self.returned.get(number, 0)
        assert entry.redelivered == (entry.returns > 0)
        self.waiting.remove(number)
        self.taken.add(number)
        self.held[number] = entry

    def settled(self, entries: list[Entry]) -> list[int]:
        numbers = [self.number_of["q", entry.message.body] for entry in entries]
        for number in numbers:
            entry = self.held.pop(number)
            for holder in [self.gone, *(client.held for client in self.clients)]:
                if entry in holder:
                    holder.remove(entry)
        return numbers

    def some_held(self, data: st.DataObject) -> list[Entry]:
        no_ack = {number for number in self.held if number in self.done}
        known = [entry for number, entry in self.held.items() if number not in no_ack]
        return data.draw(st.lists(st.sampled_from(known), unique=True)) if known else []

    @rule(size=st.integers(0, 3), priority=st.integers(0, 4))
    def publish(self, size: int, priority: int) -> None:
        number = len(self.number_of)
        body = f"{number:04}" + "x" * size
        self.number_of["q", body.encode()] = number
        self.priority[number] = min(priority, self.highest)
        self.waiting.add(number)
        assert self.host.send(body, priority=priority) == (1, False)

    @rule(
        room=st.integers(0, 3),
        nbytes=st.integers(0, 30),
        browse=st.booleans(),
        no_ack=st.booleans(),
        priority=st.integers(0, 1),
        parity=st.none() | st.integers(0, 1),
    )
    def consume(self, room: int, nbytes: int, *, browse: bool, no_ack: bool, priority: int, parity: int | None) -> None:
        client = Client(self, room, nbytes, browse=browse, no_ack=no_ack, parity=parity)
        client.consumer = self.host.consume(
            "q",
            client,
            owner=ME,
            browse=browse,
            no_ack=no_ack and not browse,
            priority=priority,
            selector=None if parity is None else client.selects,
        )
        self.clients.append(client)
        self.queue.ready()

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), room=st.integers(0, 3), nbytes=st.integers(0, 30))
    def give_credit(self, data: st.DataObject, room: int, nbytes: int) -> None:
        client = data.draw(st.sampled_from(self.clients))
        client.room += room
        client.nbytes += nbytes
        self.queue.ready()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients))
        self.clients.remove(client)
        self.gone += client.held
        assert client.consumer is not None
        self.host.cancel(client.consumer)

    @rule()
    def get(self) -> None:
        expected = self.first()
        # Consumers get what is behind it as soon as it has gone: that must come after it in this test's books.
        if expected is None:
            assert self.host.get("q", owner=ME) is None
            return
        rooms = [(client, client.room) for client in self.clients]
        for client, _ in rooms:
            client.room = 0
        entry = self.host.get("q", owner=ME)
        assert entry is not None
        assert self.number_of["q", entry.message.body] == expected
        self.took(entry, expected)
        self.gone.append(entry)
        for client, room in rooms:
            client.room = room
        self.queue.ready()

    @rule(data=st.data())
    def accept(self, data: st.DataObject) -> None:
        entries = self.some_held(data)
        self.done.update(self.settled(entries))
        self.host.accept(entries)

    @rule(data=st.data())
    def reject(self, data: st.DataObject) -> None:
        entries = self.some_held(data)
        self.done.update(self.settled(entries))
        self.host.reject(entries, now=0)

    @rule(data=st.data(), delivered=st.booleans())
    def release(self, data: st.DataObject, *, delivered: bool) -> None:
        entries = self.some_held(data)
        numbers = self.settled(entries)
        self.waiting.update(numbers)
        for number in numbers:
            self.returned[number] = self.returned.get(number, 0) + delivered
        self.host.release(entries, delivered=delivered)

    @invariant()
    def every_message_is_in_one_place(self) -> None:
        if not hasattr(self, "queue"):
            return
        unsettled = {number for number in self.held if number not in self.done}
        assert self.queue.message_count == len(self.waiting)
        assert self.queue.unsettled_count == len(unsettled)
        assert self.queue.consumer_count == len(self.clients)
        assert len(self.waiting) + len(unsettled) + len(self.done) == len(self.number_of)

    @invariant()
    def nobody_waits_in_vain(self) -> None:
        if self.waiting and hasattr(self, "queue"):
            for client in self.clients:
                head = self.first(client.wants)
                size = next((len(body) for (_, body), number in self.number_of.items() if number == head), 0)
                assert client.browse or head is None or not client.has_room(size)
                if client.browse and client.room > 0 and client.nbytes >= 7:
                    last: dict[int, int] = {}
                    for number in client.seen:
                        assert number > last.get(self.priority[number], -1)
                        last[self.priority[number]] = number
                    unpassed = self.waiting if client.parity is None else self.waiting - self.taken
                    assert all(
                        number <= last.get(self.priority[number], -1) for number in filter(client.wants, unpassed)
                    )

    def teardown(self) -> None:
        if not hasattr(self, "queue"):
            return
        for client in list(self.clients):
            self.clients.remove(client)
            assert client.consumer is not None
            self.host.cancel(client.consumer)
        entries = [entry for number, entry in self.held.items() if number not in self.done]
        self.host.release(entries)
        left = [self.number_of["q", entry.message.body] for entry in self.host.all_of()]
        everything = set(self.number_of.values()) - self.done
        assert left == sorted(everything, key=lambda number: (-self.priority[number], number))


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(stateful_step_count=40, deadline=None)
