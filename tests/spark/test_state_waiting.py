"""How long the message of a state is waited for: only while the broker answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from amqp_spark.errors import StateError
from amqp_spark.state.names import CONSUMER, Names
from amqp_spark.state.queue import TAKE_SECONDS, StateQueue
from tests.support.clock import Clock

if TYPE_CHECKING:
    from amqp_core.api import Client


class Broker:
    """The client of a broker with a state queue whose message comes at a time; it stands still in between.

    Args:
        comes_at: seconds after the first wait; ``None``: never.
        has_begun: whether the queue ever had a state.
        still: begin and end of a time for which it does not answer.
    """

    def __init__(self, comes_at: float | None, *, has_begun: bool, still: tuple[float, float] = (0.0, 0.0)) -> None:
        self.clock = Clock(0.0)
        self._comes_at, self._still, self._has_begun = comes_at, still, has_begun
        self.bound: list[str] = []

    def query_queue(self, _: str) -> SimpleNamespace:
        return SimpleNamespace(message_count=0)

    def is_bound(self, _exchange: str, _key: str) -> bool:
        return self._has_begun

    def bind(self, _queue: str, _exchange: str, key: str) -> None:
        self.bound.append(key)

    def fetcher(self, _: str) -> Broker:
        return self

    def grant(self, _: int) -> None: ...

    def take_one(self, *, timeout: float) -> SimpleNamespace | None:
        due = None if self._comes_at is None else max(self._comes_at, self._answers_at(self._comes_at))
        until = self.clock.now + timeout
        if due is None or due > until:
            self.clock.now = until
            return None
        self.clock.now = max(due, self.clock.now)
        return SimpleNamespace(body=b"state")

    def sync(self) -> None:
        self.clock.now = self._answers_at(self.clock.now)

    def _answers_at(self, asked: float) -> float:
        begin, end = self._still
        return end if begin <= asked < end else asked


def taken(broker: Broker) -> bytes | None:
    return StateQueue(cast("Client", broker), Names(CONSUMER, "me")).take()


def test_a_creation_that_was_interrupted_is_waited_for_once() -> None:
    broker = Broker(None, has_begun=False)
    assert taken(broker) is None
    assert broker.clock.now == TAKE_SECONDS


def test_a_state_that_is_gone_is_an_error_after_the_time_that_it_names() -> None:
    broker = Broker(None, has_begun=True)
    with pytest.raises(StateError, match=f"{TAKE_SECONDS:.0f} s"):
        taken(broker)
    assert broker.clock.now == TAKE_SECONDS


@pytest.mark.parametrize("begin", [0.0, 0.5, 1.0, 5.0, TAKE_SECONDS - 0.5])
def test_the_time_for_which_the_broker_stands_still_does_not_count(begin: float) -> None:
    broker = Broker(TAKE_SECONDS - 0.5, has_begun=True, still=(begin, begin + 40.0))
    assert taken(broker) == b"state"


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_message_that_a_dying_session_held_is_taken_and_the_queue_marked(*, has_begun: bool) -> None:
    broker = Broker(TAKE_SECONDS, has_begun=has_begun)
    assert taken(broker) == b"state"
    assert len(broker.bound) == (not has_begun)
