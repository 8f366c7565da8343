"""Local and distributed transactions on a real broker, and what each failure of a branch is called."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from amqp_core.api import Xid
from amqp_core.errors import (
    CommandFailed,
    CommandInvalid,
    IllegalState,
    NotAllowed,
    NotFound,
    TransactionFailed,
)
from amqp_core.v0_10 import spec
from amqp_core.v0_10.messages import Message, messages_of
from tests.support.capabilities import needs
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from amqp_core.v0_10.client import Client
    from amqp_core.v0_10.subscription import Subscription
    from tests.support.fixtures import Connect, OwnBroker

pytestmark = pytest.mark.broker


def new_xid() -> Xid:
    return Xid(format=1, global_id=uuid.uuid4().bytes, branch_id=b"b")


def publish(client: Client, queue: str, *bodies: bytes) -> None:
    for body in bodies:
        client.publish(Message(body), routing_key=queue)
    client.confirm()


def receive(client: Client, queue: str) -> list[Message]:
    subscription = client.subscribe(queue)
    subscription.grant(1000)
    subscription.flush()
    messages = [message for block in subscription.take_blocks(0) for message in messages_of(block)]
    subscription.cancel()
    return messages


def accept(client: Client, messages: list[Message]) -> None:
    client.accept([(message.command_id or 0, message.command_id or 0) for message in messages], sync=True)


def publish_and_fail(
    client: Client, queue: str, context: AbstractContextManager[object], messages: Sequence[Message] = ()
) -> None:
    with context:
        accept(client, list(messages))
        publish(client, queue, b"lost")
        raise ZeroDivisionError


def bodies(connect: Connect, vhost: str, queue: str) -> list[bytes]:
    """The messages of the queue as another client browses them."""
    client = connect(vhost)
    found = [message.body for message in receive(client, queue)]
    client.close()
    return found


# ------------------------------------------------------------------------------------------------------------------ tx
@needs("requeues_on_rollback")
def test_a_local_transaction_is_all_or_nothing(connect: Connect, place: tuple[str, str]) -> None:
    vhost, queue = place
    client = connect(vhost)
    publish(client, queue, b"1", b"2")
    messages = receive(client, queue)
    transactions = client.transactions
    transactions.select()
    accept(client, messages[:1])
    publish(client, queue, b"3")
    transactions.rollback()
    assert bodies(connect, vhost, queue) == [b"1"]  # the second is held by the session still

    again = receive(client, queue)
    assert [message.body for message in again] == [b"1"]
    accept(client, again)
    publish(client, queue, b"3")
    assert bodies(connect, vhost, queue) == []
    transactions.commit()
    assert bodies(connect, vhost, queue) == [b"3"]
    client.close()
    assert bodies(connect, vhost, queue) == [b"2", b"3"]


def test_the_tx_block_commits_or_rolls_back(connect: Connect, queue: str) -> None:
    client = connect()
    with client.transactions.tx():
        publish(client, queue, b"kept")
    with pytest.raises(ZeroDivisionError):
        publish_and_fail(client, queue, client.transactions.tx())
    with client.transactions.tx():
        publish(client, queue, b"kept, too")
    assert bodies(connect, "default", queue) == [b"kept", b"kept, too"]


def test_a_tx_block_whose_session_dies_shows_the_first_error(connect: Connect, queue: str) -> None:
    client = connect()
    with pytest.raises(NotFound), client.transactions.tx():
        client.delete_queue("no-such-queue")
    assert bodies(connect, "default", queue) == []


# ----------------------------------------------------------------------------------------------------------------- dtx
def test_a_branch_is_prepared_and_committed_by_another_session(connect: Connect, place: tuple[str, str]) -> None:
    vhost, queue = place
    client = connect(vhost)
    publish(client, queue, b"in")
    messages = receive(client, queue)
    xid = new_xid()
    with client.transactions.branch(xid, timeout_s=100) as branch:
        assert branch == xid
        accept(client, messages)
        publish(client, queue, b"out")
    assert client.transactions.get_timeout(xid) == 100
    client.close()
    assert bodies(connect, vhost, queue) == []
    other = connect(vhost)
    assert xid in other.transactions.recover()
    other.transactions.commit_branch(xid)
    assert xid not in other.transactions.recover()
    assert bodies(connect, vhost, queue) == [b"out"]


def test_a_branch_is_rolled_back(connect: Connect, place: tuple[str, str]) -> None:
    vhost, queue = place
    client = connect(vhost)
    publish(client, queue, b"in")
    messages = receive(client, queue)
    xid = new_xid()
    with client.transactions.branch(xid):
        accept(client, messages)
        publish(client, queue, b"out")
    client.transactions.rollback_branch(xid)
    client.close()
    assert bodies(connect, vhost, queue) == [b"in"]
    assert xid not in connect(vhost).transactions.recover()


def test_a_branch_whose_block_fails_is_rolled_back(connect: Connect, queue: str) -> None:
    client = connect()
    publish(client, queue, b"in")
    messages = receive(client, queue)
    xid = new_xid()
    with pytest.raises(ZeroDivisionError):
        publish_and_fail(client, queue, client.transactions.branch(xid), messages)
    assert bodies(connect, "default", queue) == [b"in"]
    with client.transactions.branch(xid):  # the xid is free again
        publish(client, queue, b"second")
    client.transactions.commit_branch(xid)
    client.close()
    assert bodies(connect, "default", queue) == [b"in", b"second"]


def test_one_phase_several_branches_and_a_second_session(connect: Connect, queue: str) -> None:
    client = connect()
    first, second, third = new_xid(), new_xid(), new_xid()
    transactions = client.transactions
    for xid, body in ((first, b"1"), (second, b"2")):
        with transactions.branch(xid):
            publish(client, queue, body)
    transactions.start(third)
    publish(client, queue, b"3")
    transactions.end(third)
    transactions.commit_branch(third, one_phase=True)
    assert {xid.global_id for xid in transactions.recover()} >= {first.global_id, second.global_id}
    transactions.commit_branch(second)
    transactions.rollback_branch(first)
    assert bodies(connect, "default", queue) == [b"3", b"2"]


def test_join_and_suspend(connect: Connect, queue: str) -> None:
    one, two = connect(), connect()
    xid = new_xid()
    for client in (one, two):
        client.transactions.dtx_select()
    one.transactions.start(xid)
    two.transactions.start(xid, join=True)
    publish(one, queue, b"1")
    publish(two, queue, b"2")
    one.transactions.end(xid, suspend=True)
    publish(one, queue, b"outside")
    one.transactions.start(xid, resume=True)
    publish(one, queue, b"3")
    one.transactions.end(xid)
    two.transactions.end(xid)
    two.transactions.prepare(xid)
    assert bodies(connect, "default", queue) == [b"outside"]
    one.transactions.commit_branch(xid)
    assert sorted(bodies(connect, "default", queue)) == [b"1", b"2", b"3", b"outside"]


def test_an_expired_branch_says_so(connect: Connect, queue: str) -> None:
    client = connect()
    publish(client, queue, b"in")
    messages = receive(client, queue)
    xid = new_xid()
    with client.transactions.branch(xid, timeout_s=3):  # enough to prepare it, on any machine
        accept(client, messages)
    other = connect()
    wait_until(lambda: xid not in other.transactions.recover(), "the timeout to roll the branch back", poll_s=0.1)
    with pytest.raises(TransactionFailed, match=r"dtx\.commit ended with XA_RBTIMEOUT \(2\)") as raised:
        other.transactions.commit_branch(xid)
    assert raised.value.status == spec.DtxXaStatus.XA_RBTIMEOUT
    client.close()
    assert bodies(connect, "default", queue) == [b"in"]


def test_a_branch_that_expires_before_its_end_leaves_nothing_behind(connect: Connect, queue: str) -> None:
    client, other = connect(), connect()
    publish(client, queue, b"in")
    messages = receive(client, queue)
    subscription = other.subscribe(queue)
    subscription.grant(1)
    xid = new_xid()
    with pytest.raises(TransactionFailed, match=r"dtx\.end ended with XA_RBTIMEOUT"):
        _wait_inside(client, xid, messages, subscription)
    other.accept([(0, 1000)], sync=True)
    with pytest.raises(NotFound):
        other.transactions.rollback_branch(xid)
    client.close()
    assert bodies(connect, "default", queue) == []


def _wait_inside(client: Client, xid: Xid, messages: list[Message], subscription: Subscription) -> None:
    """Until the branch has expired and the messages that it had accepted go to another client."""
    with client.transactions.branch(xid, timeout_s=1):
        accept(client, messages)
        assert [message.body for message in subscription.take(1, timeout=20.0)] == [b"in"]


def test_a_prepare_that_fails_does_not_end_the_branch_twice(connect: Connect, queue: str) -> None:
    """Another session marks the branch as failed (a joined session that dies): the rollback still gets through."""
    client, other = connect(), connect()
    publish(client, queue, b"in")
    messages = receive(client, queue)
    xid = new_xid()
    other.transactions.dtx_select()
    with pytest.raises(CommandFailed):
        _join_and_never_end(client, other, xid, messages)
    client.close()
    other.abort()
    cleaner = connect()

    def rolled_back() -> bool:
        nonlocal cleaner
        try:
            cleaner.transactions.rollback_branch(xid)
        except NotFound:
            return True
        except CommandFailed:
            cleaner = connect()
            return False
        return True

    wait_until(rolled_back, "the branch to be rolled back", poll_s=0.1)
    assert bodies(connect, "default", queue) == [b"in"]


def _join_and_never_end(client: Client, other: Client, xid: Xid, messages: list[Message]) -> None:
    with client.transactions.branch(xid):
        other.transactions.start(xid, join=True)
        accept(client, messages)


@needs("keeps_open_branches")
def test_a_branch_that_its_session_left_open_is_locked_until_rolled_back(connect: Connect, queue: str) -> None:
    client = connect()
    publish(client, queue, b"in")
    messages = receive(client, queue)
    xid = new_xid()
    client.transactions.dtx_select()
    client.transactions.start(xid)
    accept(client, messages)
    client.abort()
    other = connect()

    def status() -> int | None:
        nonlocal other
        try:
            other.transactions.commit_branch(xid, one_phase=True)
        except TransactionFailed as error:
            return error.status
        except IllegalState:  # the broker has not noticed the crash yet: the branch is associated still
            other = connect()
        return None

    wait_until(lambda: status() == spec.DtxXaStatus.XA_RBROLLBACK, "the broker to notice the crash", poll_s=0.1)
    assert xid not in other.transactions.recover()
    assert bodies(connect, "default", queue) == []
    other.transactions.rollback_branch(xid)
    assert bodies(connect, "default", queue) == [b"in"]


ERRORS = [
    ("start without select", CommandInvalid),
    ("start twice", NotAllowed),
    ("join unknown", NotAllowed),
    ("join and resume", CommandInvalid),
    ("end unknown", IllegalState),
    ("prepare unknown", NotFound),
    ("commit unknown", NotFound),
    ("rollback unknown", NotFound),
    ("get timeout of unknown", NotFound),
    ("set timeout of unknown", NotFound),
    pytest.param("forget unknown", NotFound, marks=needs("forgets_branches")),
    ("prepare not ended", IllegalState),
    ("commit not prepared", IllegalState),
    ("one phase on prepared", IllegalState),
]


@pytest.mark.parametrize(("what", "error"), ERRORS)
def test_errors_of_branches_are_typed(connect: Connect, what: str, error: type[CommandFailed]) -> None:
    client = connect()
    dtx = client.transactions
    xid, started = new_xid(), new_xid()
    if what != "start without select":
        dtx.dtx_select()
        dtx.start(started)
    if what in ("commit not prepared", "one phase on prepared"):
        dtx.end(started)
    if what == "one phase on prepared":
        dtx.prepare(started)
    calls: dict[str, Callable[[], object]] = {
        "start without select": lambda: dtx.start(xid),
        "start twice": lambda: dtx.start(started),
        "join unknown": lambda: dtx.start(xid, join=True),
        "join and resume": lambda: dtx.start(started, join=True, resume=True),
        "end unknown": lambda: dtx.end(xid),
        "prepare unknown": lambda: dtx.prepare(xid),
        "commit unknown": lambda: dtx.commit_branch(xid),
        "rollback unknown": lambda: dtx.rollback_branch(xid),
        "get timeout of unknown": lambda: dtx.get_timeout(xid),
        "set timeout of unknown": lambda: dtx.set_timeout(xid, 5),
        "forget unknown": lambda: dtx.forget(xid),
        "prepare not ended": lambda: dtx.prepare(started),
        "commit not prepared": lambda: dtx.commit_branch(started),
        "one phase on prepared": lambda: dtx.commit_branch(started, one_phase=True),
    }
    with pytest.raises(CommandFailed) as raised:
        calls[what]()
    assert type(raised.value) is error
    assert (raised.value.command or "").startswith("dtx.")
    cleaner = connect()
    try:
        if started in cleaner.transactions.recover():
            cleaner.transactions.rollback_branch(started)
    finally:
        cleaner.close()


def test_prepared_branches_survive_kill_9(own_broker: OwnBroker, connect: Connect) -> None:
    broker = own_broker()
    client = connect("durable", broker)
    client.declare_queue("q", durable=True)
    for body in (b"a", b"b"):
        delivery = spec.DeliveryProperties(delivery_mode=spec.MessageDeliveryMode.PERSISTENT)
        client.publish(Message(body, delivery), routing_key="q")
    client.confirm()
    messages = receive(client, "q")
    committed, undone = new_xid(), new_xid()
    for xid, message, body in ((committed, messages[0], b"A"), (undone, messages[1], b"B")):
        with client.transactions.branch(xid):
            accept(client, [message])
            delivery = spec.DeliveryProperties(delivery_mode=spec.MessageDeliveryMode.PERSISTENT)
            client.publish(Message(body, delivery), routing_key="q")
            client.confirm()
    broker.restart(kill=True)
    other = connect("durable", broker)
    recovered = other.transactions.recover()
    assert sorted(xid.global_id or b"" for xid in recovered) == sorted(
        xid.global_id or b"" for xid in (committed, undone)
    )
    other.transactions.commit_branch(committed)
    other.transactions.rollback_branch(undone)
    assert sorted(message.body for message in receive(other, "q")) == [b"A", b"b"]
