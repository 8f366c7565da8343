"""Exactly-once in the sink when the broker does not take something, or connections break; on a real broker."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.errors import UnauthorizedAccess
from amqp_core.v0_10 import spec
from amqp_core.v0_10.client import Client
from amqp_spark.errors import PublishFailed, StateError, Unroutable
from tests.broker.exactly_once_support import Writer, batches, nothing_is_left, prepared_of
from tests.broker.sink_scenarios import sync, taken, transfer
from tests.broker.stream_support import depth
from tests.support.capabilities import needs
from tests.support.dial import address, by_way_of
from tests.support.proxy import FaultProxy
from tests.support.triggers import operation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.fixtures import Broker, Connect, OwnBroker
    from tests.support.triggers import Trigger

pytestmark = pytest.mark.broker


@pytest.fixture
def client(connect: Connect) -> Client:
    return connect()


@pytest.fixture
def writer(broker: Broker, queue: str) -> Iterator[Writer]:
    writer = Writer(broker, queue)
    yield writer
    writer.close()


@pytest.fixture
def proxy(broker: Broker) -> Iterator[FaultProxy]:
    with FaultProxy(address(broker)) as proxy:
        yield proxy


# ---------------------------------------------------------------------------------------- what the broker does not take
def test_a_row_without_a_queue_fails_the_task_and_nothing_is_prepared(client: Client, writer: Writer) -> None:
    writer.given["routingKey"] = "no-such-queue"
    with pytest.raises(Unroutable, match=r"3 message\(s\), the first is row 0 of partition 0 in batch 0"):
        writer.run(0, range(3))
    assert prepared_of(client, writer) == []


def test_rows_without_a_queue_may_be_discarded(client: Client, writer: Writer) -> None:
    writer.given |= {"routingKey": "no-such-queue", "onUnroutable": "discard"}
    delivery = writer.delivery(0)
    assert delivery.run(batches(["1", "2"])).discarded == 2
    assert writer.decision.commit([delivery.prepared], 0)
    nothing_is_left(client, writer)
    assert depth(client, writer.queue) == 0


def test_an_exchange_that_is_not_there(client: Client, writer: Writer) -> None:
    writer.given["exchange"] = "no-such-exchange"
    with pytest.raises(PublishFailed, match="there is no such exchange"):
        writer.run(0, range(3))
    assert prepared_of(client, writer) == []


@needs("rejects_overflow")
@pytest.mark.parametrize("on_unroutable", ["fail", "discard"])
def test_a_queue_that_is_full(client: Client, broker: Broker, fresh_names: Iterator[str], on_unroutable: str) -> None:
    """Broker-J counts what is in no branch: what overflows is refused when the branch is committed, or not at all."""
    queue = next(fresh_names)
    client.declare_queue(queue, arguments={"qpid.max_count": 10, "qpid.policy_type": "reject"})
    writer = Writer(broker, queue, given={"onUnroutable": on_unroutable})
    assert writer.publish(0, range(10))
    with pytest.raises(PublishFailed):
        writer.run(1, range(10, 12))
    nothing_is_left(client, writer)
    assert taken(client, queue) == Counter(range(10))
    assert writer.publish(1, range(10, 12))
    assert taken(client, queue) == Counter(range(10, 12))
    writer.close()


def test_a_login_that_may_not_declare(own_broker: OwnBroker, connect: Connect) -> None:
    ours = own_broker(durable=False, acl=('ACL DENY trader CREATE QUEUE name="amqp-spark.*"',))
    client = connect(broker=ours)
    client.declare_queue("q")
    trader = {"username": "trader", "password": ours.config.users["trader"]}
    writer = Writer(ours, "q", given=trader)
    with pytest.raises(StateError, match=r"may not declare the queue 'amqp-spark\.markers\.") as failed:
        writer.run(0, range(3))
    assert trader["password"] not in str(failed.value)

    writer.given = {}
    tasks = writer.run(0, range(3))
    writer.given = trader
    with pytest.raises(StateError, match=r"may not declare the queue 'amqp-spark\.lock\..*amqp-spark\.\*") as failed:
        writer.decision.commit(tasks, 0)
    assert trader["password"] not in str(failed.value)
    assert depth(client, "q") == 0
    writer.close()


@pytest.mark.sampled("rule", every=2)
@pytest.mark.parametrize(
    ("rule", "what"),
    [
        ('CREATE QUEUE name="amqp-spark.state.*"', r"may not declare the queue 'amqp-spark\.state\."),
        ('CONSUME QUEUE name="amqp-spark.*"', r"may not consume the queue 'amqp-spark\.state\."),
        ('CONSUME QUEUE name="amqp-spark.markers.*"', r"may not declare and consume the queue 'amqp-spark\.markers\."),
        (
            'PUBLISH EXCHANGE name="" routingkey="amqp-spark.state.*"',
            r"may not publish to the queue 'amqp-spark\.state\.",
        ),
    ],
)
def test_a_login_that_may_not_all_that_it_takes(own_broker: OwnBroker, connect: Connect, rule: str, what: str) -> None:
    ours = own_broker(durable=False, acl=(f"ACL DENY trader {rule}",))
    client = connect(broker=ours)
    client.declare_queue("q")
    trader = {"username": "trader", "password": ours.config.users["trader"]}
    writer = Writer(ours, "q", given=trader)
    tasks = writer.run(0, range(3))
    with pytest.raises(StateError, match=f"{what}.*Permit it to create") as failed:
        writer.decision.commit(tasks, 0)
    assert trader["password"] not in str(failed.value)
    assert depth(client, "q") == 0
    writer.given = {}
    assert writer.decision.commit(tasks, 0)
    writer.close()


@pytest.mark.parametrize(("kind", "nth"), [("state", 1), ("markers", 2)])
def test_a_login_that_may_not_bind(
    client: Client, writer: Writer, monkeypatch: pytest.MonkeyPatch, kind: str, nth: int
) -> None:
    """Broker-J lets everybody bind, whatever its rules say; qpidd does not. So the refusal is made up here."""
    tasks = writer.run(0, range(3))
    calls = itertools.count(1)
    bind = Client.bind

    def refused(self: Client, *args: Any) -> None:
        if next(calls) == nth:
            raise UnauthorizedAccess(403, None, "ACL denied exchange bind request")
        bind(self, *args)

    monkeypatch.setattr(Client, "bind", refused)
    what = rf"may not bind to amq\.direct the queue 'amqp-spark\.{kind}\..*for writer '{writer.identity}'.*ACL denied"
    with pytest.raises(StateError, match=what):
        writer.decision.commit(tasks, 0)
    assert depth(client, writer.queue) == 0
    assert writer.decision.commit(tasks, 0)
    nothing_is_left(client, writer)
    assert taken(client, writer.queue) == Counter(range(3))


@pytest.mark.thorough
def test_a_login_that_may_not_publish_markers(own_broker: OwnBroker, connect: Connect) -> None:
    rule = 'ACL DENY trader PUBLISH EXCHANGE name="" routingkey="amqp-spark.markers.*"'
    ours = own_broker(durable=False, acl=(rule,))
    connect(broker=ours).declare_queue("q")
    writer = Writer(ours, "q", given={"username": "trader", "password": ours.config.users["trader"]})
    said = r"AMQP_PERMISSION_MISSING\] The login may not publish to the queue .* Permit it to create"
    with pytest.raises(PublishFailed, match=said) as failed:
        writer.run(0, range(3))
    assert (failed.value.partition, failed.value.batch_id) == (0, 0)
    writer.close()


# ----------------------------------------------------------------------------------------------- connections that break
def code(command: type[spec.Command], nth: int = 1, *, past: bool = False) -> Trigger:
    return operation(command.CODE, nth=nth, past=past)


@pytest.mark.parametrize(
    "trigger",
    [
        code(spec.DtxSelect),
        code(spec.DtxStart),
        code(spec.DtxStart, past=True),
        code(spec.DtxSetTimeout, past=True),
        transfer(50),
        sync(1),
        code(spec.DtxEnd),
        code(spec.DtxEnd, past=True),
        code(spec.DtxPrepare),
        code(spec.DtxPrepare, past=True),
    ],
    ids=lambda trigger: None,
)
def test_the_connection_of_a_task_is_cut(client: Client, writer: Writer, proxy: FaultProxy, trigger: Trigger) -> None:
    """Before the first row it is made again; then the task fails, and Spark runs it again: here we do."""
    direct = writer.given
    writer.given = {"url": by_way_of(proxy.port, writer.broker.url()), "heartbeat": 5}
    struck = proxy.to_broker.cut(trigger)
    try:
        tasks = writer.run(0, range(100))
    except PublishFailed:
        writer.tasks.close()
        tasks = writer.run(0, range(100))
    assert struck.struck.wait(10)
    writer.given = direct
    assert writer.decision.commit(tasks, 0)
    nothing_is_left(client, writer)
    assert taken(client, writer.queue) == Counter(range(100))


@pytest.mark.parametrize(
    "trigger",
    [
        code(spec.QueueDeclare, past=True),
        code(spec.DtxRecover, 2),
        code(spec.DtxSetTimeout, past=True),
        code(spec.TxSelect, past=True),
        code(spec.MessageAccept, past=True),
        code(spec.TxCommit),
        code(spec.TxCommit, past=True),
        code(spec.DtxCommit),
        code(spec.DtxCommit, past=True),
        code(spec.DtxCommit, 2, past=True),
        code(spec.TxCommit, 2),
        code(spec.TxCommit, 2, past=True),
        code(spec.DtxRollback),
        code(spec.DtxRollback, past=True),
        code(spec.QueueDelete),
        code(spec.QueueDelete, past=True),
    ],
    ids=lambda trigger: None,
)
def test_the_connection_of_a_decision_is_cut(
    client: Client, writer: Writer, proxy: FaultProxy, trigger: Trigger
) -> None:
    """It goes on by itself on the next connection, whatever the broker has done of what was sent."""
    writer.given = {"url": by_way_of(proxy.port, writer.broker.url()), "heartbeat": 5}
    tasks = writer.run(0, range(10), range(10, 20))
    writer.task(0, 0, range(10), attempt=1)
    struck = proxy.to_broker.cut(trigger)
    assert writer.decision.commit(tasks, 0)
    assert struck.struck.wait(10)
    assert taken(client, writer.queue) == Counter(range(20))
    assert writer.publish(1, range(20, 30)), "the rest of a lost connection prevents the next commit"
    nothing_is_left(client, writer)
    assert taken(client, writer.queue) == Counter(range(20, 30))


# ------------------------------------------------------------------------------------------------- brokers that restart
def test_a_broker_with_a_store_is_killed_between_prepare_and_commit(own_broker: OwnBroker, connect: Connect) -> None:
    ours = own_broker()
    connect("durable", ours).declare_queue("q", durable=True)
    writer = Writer(ours, "q", "durable")
    assert writer.publish(0, range(10))
    tasks = writer.run(1, range(10, 20), range(20, 30))
    ours.kill9()
    ours.start()
    assert writer.decision.commit(tasks, 1)
    client = connect("durable", ours)
    nothing_is_left(client, writer)
    assert taken(client, "q") == Counter(range(30))
    writer.close()


@pytest.mark.thorough
def test_a_broker_without_a_store_is_restarted_between_prepare_and_commit(
    own_broker: OwnBroker, connect: Connect
) -> None:
    """Durable queues are there again, and empty: without its state nothing of the batch is published."""
    ours = own_broker(durable=False)
    connect(broker=ours).declare_queue("q")
    writer = Writer(ours, "q")
    assert writer.publish(0, range(10))
    tasks = writer.run(1, range(10, 20), range(20, 30))
    ours.kill9()
    ours.start()
    client = connect(broker=ours)
    client.declare_queue("q")
    with pytest.raises(StateError, match=r"The state queue .* has no message.* URL --transactional-id \S+ --forget"):
        writer.decision.commit(tasks, 1)
    for queue in (writer.names.state, writer.names.markers):  # as --forget does
        client.delete_queue(queue)
    with pytest.raises(StateError, match=r"The queue .* was deleted, .*nothing of batch 1 was committed"):
        writer.decision.commit(tasks, 1)
    with pytest.raises(StateError, match=r"2 of 2 transactions are no longer prepared.*nothing of them was committed"):
        writer.decision.commit(tasks, 1)
    assert writer.publish(1, range(10, 20), range(20, 30))
    nothing_is_left(client, writer)
    assert taken(client, "q") == Counter(range(10, 30))
    writer.close()
