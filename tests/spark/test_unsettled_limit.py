"""The limit of unsettled messages, session after session: sizes, losses, pauses, and what ends a smaller limit."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from amqp_spark.datasource import unsettled as module
from amqp_spark.datasource.receive_buffer import ReceiveBuffer
from amqp_spark.datasource.unsettled import HIGHEST, UnsettledFlowControl
from tests.support.clock import Clock
from tests.support.fake_broker import FakeBlock


class Socket:
    """Notes whether it is read."""

    under_way_bytes = 0

    def __init__(self) -> None:
        self.paused: list[bool] = []

    def pause_reading(self, paused: bool) -> None:
        self.paused.append(paused)


class Session:
    """A flow control over a buffer of one queue, and the sessions that it serves."""

    def __init__(self, budget: int, **options: Any) -> None:
        self.clock, self.socket = Clock(), Socket()
        self.held = ReceiveBuffer(["q"], budget, self.clock)
        self.flow = UnsettledFlowControl("q", self.held, **options)
        self.id = 0

    def begin(self) -> int | None:
        most = self.flow.most_unsettled()
        self.held.buffers["q"].new_incarnation()
        self.flow.restart()
        return most

    def receive(self, *sizes: int) -> None:
        ends = [sum(sizes[: at + 1]) for at in range(len(sizes))]
        block = FakeBlock(bytes(ends[-1]), ends, self.id, max(sizes))
        self.id += len(sizes)
        self.held.buffers["q"].append(block)
        self.flow.arrived(block)
        self.regulate()

    def accept(self) -> None:
        """Spark has committed all that is here."""
        buffer = self.held.buffers["q"]
        buffer.fix(buffer.received, buffer.waiting_bytes)
        buffer.accept(buffer.received)

    def regulate(self) -> None:
        self.flow.regulate(self.socket, None, left=1, idles=True)  # type: ignore[arg-type]

    def lose(self, after: float) -> None:
        self.clock.now += after
        self.flow.end()


def test_the_limit_follows_from_the_budget_and_the_sizes_seen() -> None:
    session = Session(1 << 20)
    assert session.begin() == (1 << 20) // module.FIRST_GUESS_BYTES
    session.receive(*[100] * 1000)
    session.lose(1.0)
    assert session.begin() == (1 << 20) // 200, "twice the mean"
    assert Session(1 << 30).begin() == HIGHEST
    assert Session(1).begin() == 1
    assert Session(1 << 30, settles=False).begin() is None


def test_what_another_process_has_received_gives_a_first_limit_that_cannot_be_small() -> None:
    session = Session(1 << 26, owns=True)
    session.flow.expect(0, 0)
    assert session.flow.most_unsettled(looks=False) == (1 << 26) // module.FIRST_GUESS_BYTES
    session.flow.expect(50, 50 * 20_000_000)
    assert session.flow.most_unsettled(looks=False) == 1
    assert session.flow.most_unsettled() == (1 << 26) // module.LOOK_BYTES
    session.flow.most_unsettled(looks=False)
    session.flow.restart()
    assert not session.flow.may_raise_limit(), "nothing is known yet"
    session.receive(1000)
    assert session.flow.may_raise_limit()
    session.receive(*[1000] * 999)
    assert session.flow.most_unsettled() == (1 << 26) // 2000, "twice the mean of what has been seen"
    assert not session.flow.may_raise_limit()


def test_one_large_message_at_the_begin_does_not_fix_a_small_limit() -> None:
    session = Session(1 << 22, owns=True)
    session.begin()
    session.receive(3 << 20)
    session.accept()
    limits = [session.flow.most]
    for _ in range(100_000):
        session.receive(100)
        session.accept()
        if session.flow.may_raise_limit():
            limits.append(session.flow.most_unsettled())
    rises = [(before or 0, after or 0) for before, after in itertools.pairwise(limits)]
    assert all(after >= 2 * before for before, after in rises[1:])
    assert 3 <= len(rises) <= 16
    assert (limits[-1] or 0) >= 8000


def test_a_first_limit_is_not_replaced_by_the_same_one() -> None:
    """AvailableNow bounds the limit, too."""
    session = Session(1 << 30, owns=True)
    assert session.flow.most_unsettled(256) == 256
    session.flow.restart()
    session.receive(*[1000] * 200)
    assert not session.flow.may_raise_limit()


def test_a_connection_lost_after_a_long_pause_makes_the_limit_smaller_until_all_of_it_fits() -> None:
    session = Session(100_000)
    session.begin()
    session.receive(*[1000] * 80)
    assert session.socket.paused == []
    session.receive(30_000)
    assert session.socket.paused == [True]
    assert not session.flow.has_room()
    session.lose(module.LONG_PAUSE_SECONDS)
    assert session.begin() == 81 // 2
    session.receive(*[50_000] * 3)
    session.lose(module.LONG_PAUSE_SECONDS)
    assert session.begin() == 2, "as many of the largest as fit"
    session.receive(150_000)
    session.lose(module.LONG_PAUSE_SECONDS)
    assert session.begin() == 1
    session.lose(0.0)
    assert session.begin() == 1


def shrunk(*, owns: bool) -> Session:
    """A session with a smaller limit than the usual one, since a loss followed a long pause."""
    session = Session(1_000_000, owns=owns)
    session.begin()
    session.receive(*[700] * 1000)
    session.accept()
    session.receive(*[700] * 600, 650_000)
    session.lose(module.LONG_PAUSE_SECONDS)
    assert session.begin() == 601 // 2 < usual(session)
    return session


def usual(session: Session) -> int:
    flow = session.flow
    return 1_000_000 * flow._count // (2 * flow._bytes)


def busy(session: Session, seconds: float, *, batch_s: float) -> None:
    """Spark works on all that the limit allows, again and again, for so many seconds each time."""
    until = session.clock.now + seconds
    while session.clock.now < until:
        session.receive(*[700] * (session.flow.most or 0))
        for _ in range(int(batch_s)):
            assert not session.flow.may_raise_limit()
            session.clock.now += 1.0
            session.regulate()
        session.accept()
        session.regulate()


def test_a_smaller_limit_ends_when_no_batch_has_taken_long_for_some_time() -> None:
    session = shrunk(owns=True)
    busy(session, module.CALM_SECONDS - 1, batch_s=2)
    session.clock.now += 5.0
    assert session.flow.may_raise_limit()
    assert session.flow.most_unsettled() == usual(session)
    assert not session.flow.may_raise_limit()


def test_without_exactly_once_a_smaller_limit_ends_with_the_session() -> None:
    """Its consumer may be the active one of several: it must not end by itself."""
    session = shrunk(owns=False)
    busy(session, module.CALM_SECONDS + 5, batch_s=2)
    session.lose(0.0)
    assert session.begin() == usual(session)


@pytest.mark.parametrize("owns", [True, False])
def test_a_smaller_limit_stays_while_batches_take_long(*, owns: bool) -> None:
    """With more, the socket would not be read meanwhile."""
    session = shrunk(owns=owns)
    busy(session, 2 * module.CALM_SECONDS, batch_s=module.LONG_PAUSE_SECONDS + 5)
    session.lose(0.0)
    session.clock.now += module.CALM_SECONDS
    assert (session.begin() or 0) < usual(session), "the time without a session is no proof"


def test_a_smaller_limit_stays_although_messages_were_dropped_for_long() -> None:
    session = Session(1_000_000, owns=True)
    session.begin()
    session.receive(*[700] * 600, 650_000)
    assert not session.flow._admits(1, 50_000_000, 0)
    assert not session.flow.may_begin_anew()
    session.clock.now += 2 * module.CALM_SECONDS
    session.regulate()
    session.accept()
    assert session.flow.may_begin_anew()
    session.lose(0.0)
    assert (session.begin() or 0) < usual(session)


def test_a_loss_long_after_a_pause_has_another_reason() -> None:
    session = Session(100_000)
    session.begin()
    session.receive(*[700] * 80, 60_000)
    session.clock.now += module.LONG_PAUSE_SECONDS
    session.accept()
    session.regulate()
    assert session.socket.paused == [True, False]
    session.lose(module.RECENT_SECONDS + 1.0)
    assert session.begin() == 100_000 * 81 // (2 * (80 * 700 + 60_000)), "twice the mean"


def test_a_short_pause_changes_nothing_and_ends_when_a_batch_is_accepted() -> None:
    session = Session(100_000)
    most = session.begin()
    session.receive(*[50_000] * 2)
    buffer = session.held.buffers["q"]
    buffer.fix(2, 100_000)
    buffer.accept(2)
    session.clock.now += 1.0
    session.regulate()
    assert session.socket.paused == [True, False]
    session.lose(60.0)
    assert most is not None
    assert session.flow._losses == 0
