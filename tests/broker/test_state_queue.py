"""Swapping the state message when the connection ends in the middle: all of the transaction, or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from amqp_core.errors import AmqpError, ResourceLocked
from amqp_spark.errors import StateError
from amqp_spark.state.names import CONSUMER, Names
from amqp_spark.state.queue import StateQueue
from tests.broker.stream_support import depth, numbers, publish
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from amqp_core.blocks import Block
    from amqp_core.v0_10.client import Client
    from tests.support.fixtures import Connect

pytestmark = pytest.mark.broker


@pytest.fixture
def names(connect: Connect) -> Iterator[Names]:
    names = Names(CONSUMER, f"test {uuid4()}")
    yield names
    connect("durable").delete_queue(names.state)


def locked(connect: Connect, names: Names) -> tuple[Client, StateQueue]:
    """The state on a new client; its holder before may still be ending."""
    found: list[tuple[Client, StateQueue]] = []

    def free() -> bool:
        client = connect("durable")
        state = StateQueue(client, names)
        try:
            state.lock()
        except ResourceLocked:
            return False
        found.append((client, state))
        return True

    wait_until(free, "the lock is free", 30)
    return found[0]


def received(client: Client, queue: str, count: int) -> list[tuple[int, int]]:
    """Receive messages; the ranges of their command ids."""
    subscription = client.subscribe(queue)
    subscription.grant(count)
    blocks: list[Block] = []
    while sum(len(block.ends) for block in blocks) < count:
        blocks += subscription.take_blocks(5.0)
    return [(block.first_id, block.first_id + len(block.ends) - 1) for block in blocks]


def test_it_is_told_when_everything_was_sent(connect: Connect, names: Names, durable_queue: str) -> None:
    client, state = locked(connect, names)
    state.create(b"one")
    publish(client, durable_queue, numbers(10), persistent=True)
    ranges = received(client, durable_queue, 10)
    told: list[bytes | None] = []
    state.swap(b"two", accept=ranges, sent=lambda: told.append(state.body))
    assert told == [b"one"]
    assert state.body == b"two"
    assert depth(client, durable_queue) == 0


@pytest.mark.parametrize("round_", range(3))
def test_a_connection_that_ends_when_all_was_sent(
    connect: Connect, names: Names, durable_queue: str, round_: int
) -> None:
    client, state = locked(connect, names)
    state.create(b"one")
    publish(client, durable_queue, numbers(500), persistent=True)
    ranges = received(client, durable_queue, 500)
    with pytest.raises(AmqpError):
        state.swap(b"two", accept=ranges, sent=client.abort)
    other, found = locked(connect, names)
    assert depth(other, names.state) == 1
    body = found.take()
    assert depth(other, durable_queue) == {b"one": 500, b"two": 0}[body or b""]


def test_a_connection_that_ends_before_the_commit_changes_nothing(
    connect: Connect, names: Names, durable_queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, state = locked(connect, names)
    state.create(b"one")
    publish(client, durable_queue, numbers(10), persistent=True)
    ranges = received(client, durable_queue, 10)
    commit = client.transactions.commit

    def cut_off(sent: Callable[[], None] | None, *, silence_timeout_s: float) -> None:
        client.abort()
        commit(sent, silence_timeout_s=silence_timeout_s)

    monkeypatch.setattr(client.transactions, "commit", cut_off)
    with pytest.raises(AmqpError):
        state.swap(b"two", accept=ranges)
    other, found = locked(connect, names)
    assert found.take() == b"one"
    wait_until(lambda: depth(other, durable_queue) == 10, "the messages are back", 30)


def test_a_second_message_in_the_state_queue_is_noticed(connect: Connect, names: Names) -> None:
    client, state = locked(connect, names)
    state.create(b"one")
    publish(connect("durable"), names.state, [b"not ours"], persistent=True)
    state.swap(b"two")
    with pytest.raises(StateError, match="must have one message, and another one came"):
        state.swap(b"three")
    client.close()
    _, again = locked(connect, names)
    with pytest.raises(StateError, match=r"must have one message, and it has 2.*nothing was changed"):
        again.take()
