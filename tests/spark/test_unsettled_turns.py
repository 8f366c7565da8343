"""Several queues without credit: of messages that exceed the share of their queue one arrives at a time."""

from __future__ import annotations

import random
from typing import Any

import pytest

from amqp_spark.datasource import unsettled
from amqp_spark.datasource.credit import SLACK_BYTES
from amqp_spark.datasource.receive_buffer import ReceiveBuffer
from amqp_spark.datasource.unsettled import EXCESS_BYTES, UnsettledFlowControl
from tests.support.fake_broker import FakeBlock

READ_BYTES = 1 << 18
LARGE_BYTES = 1 << 15
MB = 1 << 20


class Queue:
    """A queue of messages that arrive in parts, and its flow control."""

    def __init__(self, name: str, held: ReceiveBuffer, sizes: list[int]) -> None:
        self.flow = UnsettledFlowControl(name, held)
        self.buffer = held.buffers[name]
        self.sizes = sizes
        self.came = 0
        """Bytes of the first message of ``sizes`` that have arrived."""
        self.paused = False
        self.woken = 0
        held.wake[name] = self.wake
        self.flow.most_unsettled()
        self.flow.restart()

    def wake(self) -> None:
        self.woken += 1

    @property
    def under_way_bytes(self) -> int:
        return self.sizes[0] if self.came >= LARGE_BYTES else 0

    def pause_reading(self, paused: bool) -> None:
        self.paused = paused

    def regulate(self, left: int = 1) -> bool:
        """Whether the socket is read."""
        client: Any = self
        self.flow.regulate(client, client, left=left, idles=True)
        return not self.paused

    def read(self, nbytes: int) -> None:
        """Read once, and store the messages that are complete."""
        ends: list[int] = []
        while self.sizes and nbytes:
            part = min(nbytes, self.sizes[0] - self.came)
            self.came += part
            nbytes -= part
            if self.came == self.sizes[0]:
                ends.append((ends[-1] if ends else 0) + self.sizes.pop(0))
                self.came = 0
        if ends:
            sizes = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
            block = FakeBlock(bytes(ends[-1]), ends, self.buffer.received, max(sizes))
            self.buffer.append(block)
            self.flow.arrived(block)

    def lose(self) -> None:
        """Lose the connection; the message under way is sent again to the next one."""
        self.flow.end()
        self.came, self.paused = 0, False

    def commit(self) -> None:
        """Accept all that was received."""
        if self.buffer.waiting:
            self.buffer.fix(self.buffer.received, self.buffer.waiting_bytes)
            self.buffer.accept(self.buffer.received)


def queues(budget: int, *sizes: list[int]) -> tuple[ReceiveBuffer, list[Queue]]:
    """One queue for each list of sizes, within one budget."""
    names = [f"q{number}" for number in range(len(sizes))]
    held = ReceiveBuffer(names, budget, clock=lambda: 0.0)
    return held, [Queue(name, held, list(each)) for name, each in zip(names, sizes, strict=True)]


def test_a_large_message_waits_until_another_one_has_arrived_and_was_accepted() -> None:
    _, (one, two) = queues(8 * MB, [20 * MB, 1], [20 * MB, 1])
    for each in (one, two):
        assert each.regulate()
        each.read(READ_BYTES)
    assert one.regulate()
    assert not two.regulate()
    assert not two.flow.has_room()
    one.read(20 * MB)
    one.regulate()
    assert two.woken == 1, "its turn begins"
    assert not two.regulate(), "the other message is held"
    one.commit()
    assert two.regulate()


def test_a_message_that_fits_into_the_share_does_not_wait() -> None:
    _, (one, two) = queues(8 * MB, [20 * MB], [3 * MB])
    for each in (one, two):
        each.read(READ_BYTES)
    assert one.regulate()
    assert two.regulate()


def test_a_queue_whose_connection_is_lost_leaves_its_turn() -> None:
    _, (one, two) = queues(8 * MB, [20 * MB], [20 * MB])
    for each in (one, two):
        each.read(READ_BYTES)
        each.regulate()
    one.lose()
    assert two.woken == 1
    assert two.regulate()


def test_messages_that_are_not_kept_wait_for_their_turn_too() -> None:
    """AvailableNow: those beyond the end arrive, too, until the broker has ended the subscription."""
    _, (one, two) = queues(8 * MB, [20 * MB], [20 * MB])
    for each in (one, two):
        each.read(READ_BYTES)
    assert one.regulate(left=0)
    assert not two.regulate(left=0)


def test_a_session_begins_with_its_turn_where_the_wait_has_cost_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each lost connection counts as a delivery of the message, until a quorum queue drops it."""
    monkeypatch.setattr(unsettled, "IDLE_SECONDS", 0.01)
    monkeypatch.setattr(unsettled, "LONG_PAUSE_SECONDS", 0.0)
    held, (one, two) = queues(8 * MB, [20 * MB], [20 * MB])
    for each in (one, two):
        each.read(READ_BYTES)
        each.regulate()
    two.lose()
    waited = 0

    def wait(_: float) -> None:
        nonlocal waited
        waited += 1
        if waited == 1:
            one.read(20 * MB)
            one.regulate()
        else:
            one.commit()

    monkeypatch.setattr(held.changed, "wait", wait)
    two.flow.before_session()
    assert waited == 2, "until the other message is accepted"
    two.flow.restart()
    one.sizes.append(20 * MB)
    one.read(READ_BYTES)
    assert two.regulate()
    assert not one.regulate(), "the turn is taken before the message begins to arrive"


def test_a_session_whose_queue_is_empty_does_not_keep_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsettled, "IDLE_SECONDS", 0.0)
    monkeypatch.setattr(unsettled, "LONG_PAUSE_SECONDS", 0.0)
    held, (one, two) = queues(8 * MB, [20 * MB], [20 * MB])
    one.read(READ_BYTES)
    two.read(READ_BYTES)
    one.regulate()
    two.regulate()
    two.lose()
    one.lose()
    two.flow.before_session()
    assert held.turns.waits("q1")
    two.flow.restart()
    two.regulate()
    assert not held.turns.waits("q1")


def test_no_turn_is_needed_by_a_single_queue() -> None:
    held, (one,) = queues(8 * MB, [20 * MB])
    one.flow._losses, one.flow._largest = 1, 20 * MB
    one.flow.before_session()
    one.read(READ_BYTES)
    assert one.regulate()
    assert held.bytes == 0


@pytest.mark.parametrize("seed", range(6))
def test_one_large_message_at_most_exceeds_the_budget(seed: int) -> None:
    """Queues read parts in random order; Spark commits at random times. All messages come."""
    chance = random.Random(seed)
    largest = 12 * MB
    sizes = [[chance.choice([100, 5000, 70_000, MB, largest]) for _ in range(30)] for _ in range(5)]
    held, all_queues = queues(4 * MB, *sizes)
    most = most_held = 0
    steps = 0
    while any(each.sizes for each in all_queues):
        steps += 1
        assert steps < 100_000, "nothing waits for ever"
        each = chance.choice(all_queues)
        if each.regulate() and each.sizes:
            each.read(chance.randint(1, READ_BYTES))
        reading = [each.regulate() for each in all_queues]
        if chance.random() < 0.002 or not any(reading):
            for other in all_queues:
                other.commit()
        most = max(most, held.bytes + sum(each.came for each in all_queues))
        most_held = max(most_held, held.bytes)
    assert most <= 4 * MB + SLACK_BYTES + largest
    assert most_held > largest
    assert EXCESS_BYTES < SLACK_BYTES
