"""Local transactions over AMQP 0-9-1, with real brokers: RabbitMQ, and Broker-J on the same protocol."""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING

import pytest

from amqp_core.api import Xid
from amqp_core.errors import ConnectionLost, MessageRejected, NotFound, ResourceLocked, UsageError
from amqp_core.v0_9 import spec
from amqp_core.v0_9.messages import Message
from tests.support.dial import dial
from tests.support.dial_0_9 import dial_0_9, dialling, put
from tests.support.process import wait_until
from tests.support.taking import take

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqp_core.v0_9.client import Client
    from tests.support.brokerj import BrokerJ
    from tests.support.dial_0_9 import Connect
    from tests.support.fixtures import Broker, OwnBroker
    from tests.support.rabbitmq import RabbitMQNode

pytestmark = pytest.mark.broker


@pytest.fixture(params=["rabbitmq", "brokerj_0_9"])
def node(request: pytest.FixtureRequest) -> RabbitMQNode | BrokerJ:
    found: RabbitMQNode | BrokerJ = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def connect(node: Broker) -> Iterator[Connect]:
    with dialling(node, "durable") as connect:
        yield connect


@pytest.fixture
def queue(connect: Connect) -> Iterator[str]:
    """The name of a new, empty, durable queue."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    connect().declare_queue(name, durable=True)
    yield name
    connect().delete_queue(name)


def publish_and_fail(client: Client, queue: str) -> None:
    with client.transactions.tx():
        client.publish_to_queue(queue, b"lost", content_type="text/plain")
        raise ZeroDivisionError


def ranges(messages: list[Message]) -> list[tuple[int, int]]:
    return [(message.transfer_id, message.transfer_id) for message in messages]


def bodies(connect: Connect, queue: str) -> list[bytes]:
    """The messages that the queue has ready; they go back."""
    with connect() as client:
        return [message.body for message in iter(lambda: client.get(queue), None)]


def test_accepts_and_publishes_wait_for_the_commit(connect: Connect, queue: str) -> None:
    client = connect()
    put(client, queue, *(b"%d" % number for number in range(6)))
    received = take(client.subscribe(queue, max_unsettled=4), 4)
    client.transactions.select()
    assert client.transactions.is_local
    client.accept(ranges(received[:3]))
    client.publish_to_queue(queue, b"new", content_type="text/plain")
    client.confirm()
    assert b"new" not in bodies(connect, queue)
    client.transactions.commit()
    client.close()
    assert sorted(bodies(connect, queue)) == [b"3", b"4", b"5", b"new"]


@pytest.mark.parametrize("end", ["rollback", "close", "abort"])
def test_what_is_not_committed_never_was(connect: Connect, queue: str, end: str) -> None:
    client = connect()
    put(client, queue, b"1", b"2")
    client.transactions.select()
    got = client.get(queue)
    assert got is not None
    client.accept(ranges([got]))
    client.publish_to_queue(queue, b"new", content_type="text/plain")
    client.confirm()
    if end == "rollback":
        client.transactions.rollback()
        client.transactions.commit()
        client.close()
    elif end == "close":
        client.close()
    else:
        client.abort()
    with connect() as other:
        found = [other.fetcher(queue) for _ in range(2)]
        for each in found:
            each.grant(1)
        messages = [each.take_one(timeout=10) for each in found]
        assert [message and message.body for message in messages] == [b"1", b"2"]
        assert other.get(queue) is None


def test_messages_of_a_rolled_back_transaction_can_be_accepted(connect: Connect, queue: str) -> None:
    client = connect()
    put(client, queue, b"1")
    client.transactions.select()
    got = client.get(queue)
    assert got is not None
    client.accept(ranges([got]))
    client.transactions.rollback()
    again = client.get(queue) or got  # Broker-J delivers it again, RabbitMQ keeps it for the client
    client.accept(ranges([again]))
    client.transactions.commit()
    client.close()
    assert bodies(connect, queue) == []


def test_the_tx_block_commits_or_rolls_back(connect: Connect, queue: str) -> None:
    client = connect()
    with client.transactions.tx():
        client.publish_to_queue(queue, b"kept", content_type="text/plain")
    with pytest.raises(ZeroDivisionError):
        publish_and_fail(client, queue)
    with client.transactions.tx():
        client.publish_to_queue(queue, b"kept, too", content_type="text/plain")
    assert bodies(connect, queue) == [b"kept", b"kept, too"]


def test_a_large_message_and_many_accepts(connect: Connect, queue: str) -> None:
    client = connect()
    put(client, queue, *([b"x"] * 3000))
    subscription = client.subscribe(queue, max_unsettled=3000)
    received: list[Message] = []
    while len(received) < 3000:
        received += subscription.take(3000 - len(received))
    client.transactions.select()
    client.accept(ranges(received[::2]))  # one by one
    large = bytes(range(256)) * 4096
    client.publish_to_queue(queue, large, content_type="text/plain")
    client.transactions.commit()
    client.accept(ranges(received))
    client.transactions.commit()
    client.close()
    assert bodies(connect, queue) == [large]


def test_an_unroutable_message(connect: Connect, queue: str) -> None:
    client = connect()
    client.transactions.select()
    client.publish_to_queue(queue, b"1", content_type="text/plain")
    client.publish_to_queue(f"{queue}-none", b"2", content_type="text/plain")
    is_rabbitmq = client.server_properties["product"] == "RabbitMQ"
    if is_rabbitmq:
        client.confirm()
    with pytest.raises(MessageRejected) as caught:
        client.transactions.commit() if is_rabbitmq else client.confirm()
    assert caught.value.code == spec.ReplyCode.NO_ROUTE
    assert bodies(connect, queue) == ([b"1"] if is_rabbitmq else [])


@pytest.mark.parametrize("node", ["rabbitmq"], indirect=True)  # Broker-J takes a missing exchange for the default one
def test_a_refused_publish_ends_the_client_and_commits_nothing(connect: Connect, queue: str) -> None:
    client = connect()
    client.transactions.select()
    client.publish_to_queue(queue, b"1", content_type="text/plain")
    client.publish(Message(b"2", spec.BasicProperties()), "no-such-exchange", "k")
    with pytest.raises(NotFound):
        client.transactions.commit()
    with pytest.raises(NotFound):
        client.transactions.commit()
    assert bodies(connect, queue) == []


def test_confirms_and_transactions_do_not_mix(connect: Connect, queue: str) -> None:
    client = connect()
    put(client, queue, b"confirmed")
    for call in (client.transactions.commit, client.transactions.rollback):
        client.get(queue)
        with pytest.raises(UsageError, match="not transactional"):
            call()
    client.transactions.select()
    client.transactions.select()
    client.transactions.commit()
    with pytest.raises(UsageError, match="takes no part in local transactions"):
        client.publisher()


def test_distributed_transactions_are_refused(connect: Connect) -> None:
    client, xid = connect(), Xid(1, b"g", b"b")
    transactions = client.transactions
    for call in (
        transactions.dtx_select,
        transactions.recover,
        lambda: transactions.start(xid),
        lambda: transactions.end(xid),
        lambda: transactions.prepare(xid),
        lambda: transactions.commit_branch(xid),
        lambda: transactions.rollback_branch(xid),
        lambda: transactions.abandon(xid, ended=False),
        lambda: transactions.get_timeout(xid),
        lambda: transactions.set_timeout(xid, 1),
    ):
        with pytest.raises(UsageError, match="it has no distributed transactions"):
            call()


def test_only_broker_j_promises_whole_transactions(connect: Connect, queue: str) -> None:
    client = connect()
    is_brokerj = client.server_properties["product"] != "RabbitMQ"
    assert client.capabilities.local_transactions == client.capabilities.binding_queries == is_brokerj
    assert not client.capabilities.distributed_transactions
    if is_brokerj:
        client.bind(queue, "amq.direct", f"key-{queue}")
        assert client.is_bound("amq.direct", f"key-{queue}")
        assert not client.is_bound("amq.direct", f"other-{queue}")
        assert not client.is_bound("no-such-exchange", "k")
    else:
        with pytest.raises(UsageError, match="AMQP_NOT_SUPPORTED"):
            client.is_bound("amq.direct", "k")


def test_fetching_is_not_limited_by_a_prefetch(connect: Connect, queue: str) -> None:
    client = connect()
    put(client, queue, b"1", b"2", b"3")
    take(client.subscribe(queue, max_unsettled=2), 2)
    fetcher = client.fetcher(queue)
    assert fetcher.take_one(timeout=0) is None, "nothing was granted"
    fetcher.grant(2)
    message = fetcher.take_one(timeout=10)
    assert message is not None
    assert message.body == b"3"
    threading.Timer(0.2, lambda: put(connect(), queue, b"4")).start()
    message = fetcher.take_one(timeout=10)
    assert message is not None
    assert message.body == b"4"
    assert fetcher.take_one(timeout=0) is None


@pytest.mark.parametrize("end", ["close", "abort"])
def test_a_lock_ends_with_its_connection(connect: Connect, queue: str, end: str) -> None:
    name = f"{queue}-lock"
    holder = connect()
    holder.declare_lock(name)
    with pytest.raises(ResourceLocked):
        connect().declare_lock(name)
    getattr(holder, end)()

    def gone() -> bool:
        try:
            return connect().query_queue(name) is None
        except ResourceLocked:  # which ends the connection on Broker-J
            return False

    wait_until(gone, "the lock is gone")


def test_both_protocols_of_broker_j_share_locks(brokerj_0_9: BrokerJ) -> None:
    name = f"test-{uuid.uuid4().hex[:12]}-lock"
    for first, second in ((dial, dial_0_9), (dial_0_9, dial)):
        with first(brokerj_0_9, "durable") as holder:
            holder.declare_lock(name)
            with second(brokerj_0_9, "durable") as other, pytest.raises(ResourceLocked):
                other.declare_lock(name)
        with second(brokerj_0_9, "durable") as other:
            other.declare_lock(name)


@pytest.mark.thorough
@pytest.mark.sampled("run", every=3)
@pytest.mark.parametrize("run", range(3))
def test_a_broker_j_killed_in_a_commit_has_all_or_nothing(own_broker: OwnBroker, run: int) -> None:
    broker = own_broker(protocols=("AMQP_0_10", "AMQP_0_9_1"), heap="512m")
    with dial_0_9(broker, "durable") as client:
        for name in ("in", "state"):
            client.declare_queue(name, durable=True)
        put(client, "in", *([b"x"] * 2000))
        put(client, "state", b"old")
        received: list[Message] = []
        subscription = client.subscribe("in", max_unsettled=2000)
        while len(received) < 2000:
            received += subscription.take(2000 - len(received))
        client.transactions.select()
        state = client.get("state")
        assert state is not None
        client.accept(ranges([*received, state]))
        client.publish_to_queue("state", b"new", content_type="text/plain")
        timer = threading.Timer(run * 0.02, broker.kill9)
        try:
            client.transactions.commit(timer.start)
        except ConnectionLost:
            done = None
        else:
            done = True
        timer.join()
    broker.start()
    with dial_0_9(broker, "durable") as client:
        state = client.get("state")
        assert state is not None
        left = client.query_queue("in")
        assert left is not None
        assert (state.body, left.message_count) in ({(b"new", 0)} if done else {(b"new", 0), (b"old", 2000)})
