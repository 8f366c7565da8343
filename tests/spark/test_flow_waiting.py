"""Messages that arrive while a consumer waits for an answer, or before its credit was replaced, count for the next one.

The peers keep to the credit that they have, in messages and in bytes.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from amqp_core.v0_10 import spec
from amqp_spark.connect import connect
from amqp_spark.datasource.receiver import Receiver
from amqp_spark.options import SourceOptions
from tests.spark.reader_support import count_looks
from tests.support.fakepeer import FakePeer, Peer
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pytest

MIB = 1 << 20
SLACK = 16 * MIB
INFINITE = float("inf")


class Sender:
    """The broker's side of one queue, whose consumer has credit and whose messages have one size."""

    def __init__(self, peer: Peer, size: int) -> None:
        self.peer = peer
        self.body = bytes(size)
        self.messages = self.backlog = 0
        self.bytes = 0.0
        self.queue: str | None = None
        self.on_stop: Callable[[], None] = lambda: None
        self.on_sync: Callable[[], None] = lambda: None
        peer.answers[spec.QueueQuery] = lambda command: spec.QueueQueryResult(
            queue=command.queue, message_count=0, subscriber_count=0
        )
        peer.hooks |= {
            spec.MessageFlow: self._flow,
            spec.MessageStop: self._stop,
            spec.ExecutionSync: lambda _: self.on_sync(),
            spec.MessageSubscribe: self._subscribe,
        }

    def has_any_size(self) -> bool:
        return self.messages > 0 and self.bytes == INFINITE

    def send(self) -> None:
        while self.messages and self.backlog and self.bytes >= len(self.body):
            self.messages -= 1
            self.backlog -= 1
            self.bytes -= len(self.body)
            self.peer.transfer(self.body)

    def _subscribe(self, command: spec.MessageSubscribe) -> None:
        self.queue = command.queue

    def _flow(self, command: spec.MessageFlow) -> None:
        value = command.value or 0
        if command.unit == spec.MessageCreditUnit.MESSAGE:
            self.messages += value
        else:
            self.bytes += INFINITE if value == 0xFFFFFFFF else value
        self.send()

    def _stop(self, _: spec.Command) -> None:
        self.on_stop()
        self.messages, self.bytes = 0, 0.0


@contextmanager
def receiving(script: Callable[[Peer], None], queues: int, budget: int) -> Iterator[Receiver]:
    """A receiver of so many queues, each with a connection to the peer."""
    with FakePeer(script) as server:
        names = ",".join(f"q{number}" for number in range(queues))
        url = f"amqp://127.0.0.1:{server.port}"
        options = SourceOptions.parse({"url": url, "queue": names, "heartbeat": 0, "bufferBytes": budget})
        receiver = Receiver(options, connect)
        receiver.start()
        try:
            yield receiver
        finally:
            receiver.stop()


def test_what_came_while_a_sync_was_waited_for_counts_for_the_next_credit() -> None:
    budget, size = 64 * MIB, 4 * MIB
    credited: list[float] = []

    def script(peer: Peer) -> None:
        peer.open()
        sender = Sender(peer, size)

        def produce() -> None:  # before the sync is complete
            credited.append(sender.bytes)
            sender.backlog = 1000
            sender.send()

        sender.on_sync = produce
        peer.serve()

    with receiving(script, 1, budget) as receiver:
        for consumer in receiver.consumers:
            wait_until(lambda consumer=consumer: consumer.connected, "the subscription", 20)  # type: ignore[misc] # of this round
        wait_until(lambda: receiver.sync() and bool(credited[-1]), "a sync with credit", 20)
        wait_until(lambda: receiver.held.bytes > 0, "what came before the answer", 20)
        for _ in range(3):
            assert receiver.sync()
        assert receiver.held.bytes <= budget + size + SLACK


def test_what_may_come_to_links_that_wait_for_an_answer_is_no_credit_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budget, size, queues = 64 * MIB, MIB, 4
    looked = count_looks(monkeypatch)
    senders: list[Sender] = []
    answering = threading.Event()
    waiting: list[str | None] = []

    def script(peer: Peer) -> None:
        peer.open()
        sender = Sender(peer, size)
        senders.append(sender)

        def produce() -> None:
            if sender.queue != "q0":
                waiting.append(sender.queue)
                assert answering.wait(60)  # a commit that takes a while
            sender.backlog = 1000
            sender.send()

        sender.on_sync = produce
        peer.serve()

    with receiving(script, queues, budget) as receiver:
        held = receiver.held
        wait_until(lambda: sum(each.messages > 0 for each in senders) == queues, "credit for all", 20)
        syncing = threading.Thread(target=receiver.sync)
        syncing.start()
        wait_until(lambda: len(waiting) == queues - 1 and held.bytes > 0, "the syncs", 20)
        before = -1
        while before != held.bytes:  # the consumer that was answered takes what it may
            before = held.bytes
            looked.clear()
            wait_until(lambda: looked["q0"] >= 5, "looks at what is free", 60)
        answering.set()
        syncing.join(60)
        assert not syncing.is_alive()
        assert receiver.sync()
        assert held.bytes <= budget + size + SLACK


def test_a_message_under_way_when_a_turn_begins_leaves_no_credit_for_one_of_any_size() -> None:
    budget, queues = MIB, 5
    senders: list[Sender] = []
    producing = threading.Event()
    together: list[int] = [0]

    def script(peer: Peer) -> None:
        peer.open()
        sender = Sender(peer, 100)

        def stop() -> None:  # a small message was published just before
            if producing.is_set() and sender.messages and not sender.has_any_size():
                sender.backlog = 1
                sender.send()

        sender.on_stop = stop
        senders.append(sender)
        while peer.ended is None:
            peer.hears(0.005)
            together[0] = max(together[0], sum(each.has_any_size() for each in senders))

    with receiving(script, queues, budget) as receiver:
        wait_until(lambda: all(consumer.connected for consumer in receiver.consumers), "the subscriptions", 20)
        wait_until(lambda: any(each.has_any_size() for each in senders), "a turn", 20)
        producing.set()
        wait_until(lambda: receiver.held.bytes > 20 * 100, "some small messages", 60)
    assert together == [1]
