"""Several queues without credit: of messages that exceed the share of their queue one arrives at a time."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from amqp_spark.datasource import unsettled
from amqp_spark.datasource.credit import SLACK_BYTES
from amqp_spark.datasource.receive_buffer import ReceiveBuffer
from amqp_spark.datasource.unsettled import (
    ANSWER_BYTES,
    EXCESS_BYTES,
    LOOK_BYTES,
    USUAL_READ_BYTES,
    UnsettledFlowControl,
    read_bytes,
)
from tests.support.fake_broker import FakeBlock

if TYPE_CHECKING:
    from collections.abc import Callable

READ_BYTES = 1 << 18
LARGE_BYTES = 1 << 15
MB = 1 << 20


class Queue:
    """A queue of messages that arrive in parts, and its flow control."""

    def __init__(self, name: str, held: ReceiveBuffer, sizes: list[int], *, owns: bool = False) -> None:
        self.flow = UnsettledFlowControl(name, held, owns=owns)
        self.held = held
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

    def own(self) -> None:
        """Accept all that was received; it stays in memory until :meth:`finish`."""
        owned = self.buffer.held_bytes
        self.commit()
        self.held.hold_elsewhere(self.buffer.queue, owned)

    def finish(self) -> None:
        """Spark has processed what was owned."""
        self.held.hold_elsewhere(self.buffer.queue, 0)

    def answered(self, *sizes: int) -> bool:
        """Messages come before an answer of the broker, each in parts; return whether all are kept."""
        admits: list[Callable[[int, int, int], bool]] = []
        subscription: Any = SimpleNamespace(bound=lambda bound, _dropped: admits.append(bound))
        self.flow.announce(subscription)
        nbytes = 0
        for count, size in enumerate(sizes):
            if size >= LARGE_BYTES and not admits[0](count, nbytes, size):
                return False
            nbytes += size
            if not admits[0](count + 1, nbytes, 0):
                return False
        self.sizes[:0] = sizes
        self.read(nbytes)
        return True

    def lose(self) -> None:
        """Lose the connection; the message under way is sent again to the next one."""
        self.flow.end()
        self.came, self.paused = 0, False

    def commit(self) -> None:
        """Accept all that was received."""
        if self.buffer.waiting:
            self.buffer.fix(self.buffer.received, self.buffer.waiting_bytes)
            self.buffer.accept(self.buffer.received)


def queues(budget: int, *sizes: list[int], owns: bool = False) -> tuple[ReceiveBuffer, list[Queue]]:
    """One queue for each list of sizes, within one budget."""
    names = [f"q{number}" for number in range(len(sizes))]
    held = ReceiveBuffer(names, budget, clock=lambda: 0.0)
    return held, [Queue(name, held, list(each), owns=owns) for name, each in zip(names, sizes, strict=True)]


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
    two.flow.before_session(lambda: False)
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
    two.flow.before_session(lambda: False)
    assert held.turns.waits("q1")
    two.flow.restart()
    two.regulate()
    assert not held.turns.waits("q1")


def test_no_turn_is_needed_by_a_single_queue() -> None:
    held, (one,) = queues(8 * MB, [20 * MB])
    one.flow._losses, one.flow._largest = 1, 20 * MB
    one.flow.before_session(lambda: False)
    one.read(READ_BYTES)
    assert one.regulate()
    assert held.bytes == 0


def test_the_wait_for_a_turn_before_a_session_ends_when_the_session_has_something_to_do() -> None:
    """With exactly-once no other batch is planned until then, so that nothing that others hold becomes free."""
    held, (one, two) = queues(8 * MB, [20 * MB], [20 * MB])
    two.flow._losses, two.flow._largest = 1, 20 * MB
    one.read(READ_BYTES)
    one.regulate()
    two.flow.before_session(lambda: True)
    two.flow.restart()
    assert held.turns.take("q1") == "q0"


# --- exactly-once


def test_owned_batches_count_until_spark_has_processed_them() -> None:
    _, (one, two) = queues(8 * MB, [4 * MB, 1], [20 * MB])
    one.regulate()
    one.read(4 * MB)
    one.own()
    assert not one.regulate()
    one.finish()
    assert one.regulate()
    one.sizes[:] = [MB] * 9
    for _ in range(9):
        one.read(MB)
    one.own()
    two.read(READ_BYTES)
    assert not two.regulate(), "the others hold too much"
    one.finish()
    assert two.regulate()


def test_room_stays_free_for_what_comes_before_an_answer() -> None:
    held, (one,) = queues(64 * MB, [30_000] * 4000, owns=True)
    one.read(30 * MB)
    one.flow.end()
    most = one.flow.most_unsettled()
    assert most is not None
    one.flow.restart()
    reserved = 64 * MB - most * 30_000
    assert 32 * MB <= reserved < 33 * MB
    while one.regulate():
        one.read(READ_BYTES)
    assert reserved <= held.bytes <= reserved + READ_BYTES
    assert held.rooms["q0"].nbytes == reserved
    assert one.answered(*[30_000] * most)
    assert held.bytes <= 64 * MB + READ_BYTES


def test_the_first_session_lets_few_messages_come_until_sizes_are_known() -> None:
    _, (one,) = queues(64 * MB, [30_000] * 4000, owns=True)
    assert one.flow.most == 64 * MB // LOOK_BYTES
    one.read(READ_BYTES)
    assert not one.flow.may_raise_limit()
    one.lose()
    assert one.flow.most_unsettled() == 64 * MB // LOOK_BYTES, "few were seen"
    while not one.flow.may_raise_limit():
        one.read(READ_BYTES)
    assert one.buffer.received < one.flow.most
    assert one.flow.most_unsettled() == 64 * MB // 60_000
    assert not one.flow.may_raise_limit()


def test_after_an_overflow_half_of_the_share_is_for_what_is_owned() -> None:
    _, (one,) = queues(64 * MB, [], owns=True)
    while one.answered(*[30_000] * 100):
        pass
    for _ in range(2):
        assert not one.flow.may_begin_anew()
        one.lose()
        one.flow.restart()
    assert one.flow.most_unsettled() == 32 * MB // 30_000


def test_without_answers_no_room_is_kept_free() -> None:
    held, (one,) = queues(64 * MB, [30_000] * 4000)
    while one.regulate():
        one.read(READ_BYTES)
    assert held.bytes >= 64 * MB


def test_what_comes_before_answers_beyond_all_shares_is_bounded_and_the_next_limit_is_smaller() -> None:
    held, all_queues = queues(4 * MB, *[[1000] * 200] * 4, owns=True)
    for each in all_queues:
        each.read(MB)
        each.commit()
        before = each.flow.most_unsettled()
        while each.answered(*[200_000] * 5):
            pass
        assert not each.flow.may_begin_anew(), "its share is used up"
        after = each.flow.most_unsettled()
        assert before is not None
        assert after is not None
        assert after < before
    assert 4 * MB + ANSWER_BYTES < held.bytes <= 4 * MB + ANSWER_BYTES + EXCESS_BYTES


def test_a_large_message_that_comes_before_an_answer_takes_a_turn_or_is_dropped() -> None:
    held, (one, two) = queues(8 * MB, [], [], owns=True)
    assert one.answered(1000, 20 * MB, 1000)
    assert not two.answered(1000, 20 * MB), "the other one has its turn until its message is accepted"
    assert two.answered(1000)
    one.commit()
    one.regulate()
    assert two.answered(20 * MB)
    assert held.bytes > 20 * MB


def test_a_session_that_has_dropped_messages_goes_on_until_its_turn_has_come() -> None:
    """Others may wait for its answers until then."""
    held, (one, two) = queues(8 * MB, [], [], owns=True)
    assert one.answered(20 * MB)
    assert not two.answered(20 * MB)
    assert not two.flow.may_begin_anew()
    two.sizes.append(20 * MB)
    two.read(READ_BYTES)
    assert two.regulate(), "what comes is dropped"
    assert not two.flow.has_room()
    one.commit()
    one.regulate()
    assert two.woken == 1
    assert two.flow.may_begin_anew()
    two.lose()
    two.flow.before_session(lambda: False)
    two.flow.restart()
    assert held.turns.take("q0") == "q1", "it has kept its turn"
    assert two.flow.has_room()
    assert two.flow.most_unsettled() == 1


def test_a_second_large_message_before_one_answer_is_dropped() -> None:
    _, (one,) = queues(8 * MB, [], owns=True)
    assert not one.answered(20 * MB, 20 * MB)


def test_the_message_after_one_that_fills_the_share_is_kept() -> None:
    """The limit is one message then, and the broker sends the next one as soon as that is accepted."""
    held, (one,) = queues(8 * MB, [20 * MB], owns=True)
    assert one.regulate()
    one.read(20 * MB)
    one.own()
    assert one.answered(20 * MB)
    assert not one.regulate()
    one.own()
    assert held.bytes == 20 * MB


def test_a_message_that_began_before_an_answer_is_received_to_its_end() -> None:
    _, (one, two) = queues(8 * MB, [3 * MB], [20 * MB], owns=True)
    one.read(3 * MB)
    one.sizes.append(20 * MB)
    admits: list[Callable[[int, int, int], bool]] = []
    subscription: Any = SimpleNamespace(bound=lambda bound, _dropped: admits.append(bound))
    one.flow.announce(subscription)
    assert admits[0](0, 0, 20 * MB)
    one.read(9 * MB)
    two.read(READ_BYTES)
    assert one.regulate(), "although its share is used up"
    assert admits[0](0, 0, 20 * MB), "in the next wait, too"
    assert not two.regulate()
    one.read(11 * MB)
    assert not one.regulate()


def test_nothing_is_dropped_that_would_not_come_again() -> None:
    flow = UnsettledFlowControl("q", ReceiveBuffer(["q"], MB, lambda: 0.0), settles=False)
    subscription: Any = SimpleNamespace()
    flow.announce(subscription)  # sets no bound


def test_messages_that_are_not_kept_need_no_room_before_an_answer() -> None:
    _, (one,) = queues(MB, [], owns=True)
    one.regulate(left=0)
    assert one.answered(*[200_000] * 100)


@pytest.mark.parametrize("count", [1, 4, 16, 64, 256, 1000])
@pytest.mark.parametrize("budget", [64 << 10, MB, 128 * MB, 4096 * MB])
def test_reads_of_many_queues_are_small(count: int, budget: int) -> None:
    nbytes = read_bytes(count, budget)
    assert 1 << 14 <= nbytes <= 1 << 20
    assert count > 256 or count * nbytes <= EXCESS_BYTES
    assert count > 16 or nbytes >= USUAL_READ_BYTES
    assert nbytes <= max(USUAL_READ_BYTES, budget // count // 16)


def test_one_queue_with_the_usual_budget_is_read_in_large_pieces() -> None:
    assert read_bytes(1, 128 * MB) == 1 << 20
    assert read_bytes(1, 2 * MB) == USUAL_READ_BYTES


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
