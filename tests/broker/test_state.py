"""The state message and its lock on a real broker: taken, and swapped with accepts in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from amqp_core.errors import ResourceLocked
from amqp_core.v0_10.messages import Message
from amqp_core.v0_10.spec import DeliveryProperties
from amqp_spark.errors import StateError
from amqp_spark.state.names import CONSUMER, Names
from amqp_spark.state.queue import StateQueue
from tests.broker.stream_support import depth
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqp_core.v0_10.client import Client
    from tests.support.fixtures import Connect

pytestmark = pytest.mark.broker


@pytest.fixture
def names(connect: Connect) -> Iterator[Names]:
    names = Names(CONSUMER, f"test {uuid4()}")
    yield names
    client = connect()
    if client.query_queue(names.state) is not None:
        client.delete_queue(names.state)


def taken(client: Client, names: Names, body: bytes = b"first") -> StateQueue:
    """Lock and take the state, or create it."""
    state = StateQueue(client, names)
    state.lock()
    if state.take() is None:
        state.create(body)
    return state


def fill(client: Client, queue: str, count: int) -> list[tuple[int, int]]:
    """Publish, receive, and return the range of command ids."""
    for number in range(count):
        client.publish(Message(b"%d" % number, DeliveryProperties(routing_key=queue)))
    client.confirm()
    subscription = client.subscribe(queue)
    subscription.grant(count)
    ids: list[int] = []
    while len(ids) < count:
        found = subscription.take_one(timeout=10)
        assert found is not None
        assert found.command_id is not None
        ids.append(found.command_id)
    return [(ids[0], ids[-1])]


def test_a_new_state_is_created_once_and_found_again(connect: Connect, names: Names) -> None:
    first = connect()
    state = StateQueue(first, names)
    state.lock()
    assert state.take() is None
    state.create(b"one")
    assert state.body == b"one"
    first.close()
    second = connect()
    assert depth(second, names.state) == 1
    assert taken(second, names, b"never").body == b"one"


def test_the_lock_is_held_by_one_session_and_ends_with_it(connect: Connect, names: Names) -> None:
    first = connect()
    taken(first, names)
    with pytest.raises(ResourceLocked):
        StateQueue(connect(), names).lock()
    first.abort()

    def free() -> bool:
        try:
            StateQueue(connect(), names).lock()
        except ResourceLocked:
            return False
        return True

    wait_until(free, "the lock to be free")


def test_a_swap_replaces_the_message_and_accepts_in_one_transaction(connect: Connect, names: Names, queue: str) -> None:
    client = connect()
    state = taken(client, names)
    accept = fill(client, queue, 5)
    state.swap(b"second", accept=accept)
    state.swap(b"third")
    client.close()
    other = connect()
    assert depth(other, queue) == 0
    assert depth(other, names.state) == 1
    assert taken(other, names).body == b"third"


def test_what_is_not_committed_is_undone(
    connect: Connect, names: Names, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect()
    state = taken(client, names)
    accept = fill(client, queue, 5)

    def die(_sent: object, *, silence_timeout_s: float) -> None:
        raise RuntimeError("here the process would have died")

    monkeypatch.setattr(client.transactions, "commit", die)
    with pytest.raises(RuntimeError, match="would have died"):
        state.swap(b"second", accept=accept)
    client.abort()
    other = connect()
    wait_until(lambda: other.query_queue(names.lock) is None, "the end of the lock")
    assert depth(other, queue) == 5
    assert taken(other, names).body == b"first"


def test_unlock_gives_message_and_lock_back_but_keeps_the_connection(connect: Connect, names: Names) -> None:
    client = connect()
    for number in range(3):
        state = taken(client, names)
        state.swap(b"%d" % number)
        state.unlock()
    other = connect()
    assert taken(other, names).body == b"2"


def test_a_purged_state_is_an_error_and_no_new_beginning(connect: Connect, names: Names) -> None:
    first = connect()
    taken(first, names).unlock()
    first.purge_queue(names.state)
    second = StateQueue(first, names)
    second.lock()
    with pytest.raises(StateError, match="purged"):
        second.take(timeout=0.2)


def test_a_creation_that_was_interrupted_is_begun_again(connect: Connect, names: Names) -> None:
    client = connect()
    client.declare_queue(names.state, durable=True)
    state = StateQueue(client, names)
    state.lock()
    assert state.take(timeout=0.2) is None
    state.create(b"one")
    assert state.body == b"one"


def test_a_state_queue_deleted_in_use_commits_nothing(connect: Connect, names: Names, queue: str) -> None:
    client = connect()
    state = taken(client, names)
    accept = fill(client, queue, 3)
    other = connect()
    other.delete_queue(names.state)
    with pytest.raises(StateError, match=names.state):
        state.swap(b"second", accept=accept)
    client.close()
    assert depth(other, queue) == 3


def test_marks_last_and_can_be_found_from_elsewhere(connect: Connect, names: Names) -> None:
    client = connect()
    state = taken(client, names)
    key = f"test.{uuid4()}"
    assert not state.marked(key)
    assert not state.marked_anywhere(key)
    state.mark(key)
    assert state.marked(key)
    assert state.marked_anywhere(key)
    elsewhere = StateQueue(client, Names(CONSUMER, f"test {uuid4()}"))
    assert elsewhere.marked_anywhere(key)
    assert not elsewhere.marked(key)
    state.unmark(key)
    assert not state.marked_anywhere(key)
    assert not state.marked(key)
    state.unmark(key)
