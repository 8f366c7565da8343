"""The sink over AMQP 0-9-1, on real brokers: what arrives, what is refused and how, and what is sent again."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from amqp_spark import crashpoints
from amqp_spark.errors import PublishFailed, Unroutable, UnsupportedModeError
from amqp_spark.sink.commit_coordinator import CommitCoordinator
from amqp_spark.sink.prepared_transactions import PreparedBranch
from tests.broker.sink_0_9_support import KINDS, Place, rows
from tests.support.process import wait_until
from tests.support.rabbitmq import Rights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.broker

KEYED = StructType().add("body", "string").add("routing_key", "string")
NAMED = StructType().add("body", "string").add("exchange", "string").add("routing_key", "string")


OLD = [pytest.param(f"{kind} 3.10", marks=pytest.mark.thorough) for kind in ("quorum", "classic")]


@pytest.fixture(params=[*KINDS, *OLD])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A broker with queues of each kind, and an old RabbitMQ."""
    kind, _, old = request.param.partition(" ")
    broker = request.getfixturevalue("brokerj_0_9" if kind == "brokerj" else "rabbitmq310" if old else "rabbitmq")
    with ExitStack() as stack:
        yield Place(broker, kind, stack)


@pytest.fixture(params=["rabbitmq", pytest.param("rabbitmq310", marks=pytest.mark.thorough)])
def rabbit(request: pytest.FixtureRequest) -> Iterator[Place]:
    """RabbitMQ with classic queues."""
    with ExitStack() as stack:
        yield Place(request.getfixturevalue(request.param), "classic", stack)


def and_then(do: Callable[[], object]) -> Iterator[pa.RecordBatch]:
    """A hundred rows, what happens then, and a hundred more."""
    yield rows(100)
    do()
    yield rows(100, 100)


# --- what arrives


def test_every_row_arrives_once_and_in_order(place: Place) -> None:
    queue = place.queue()
    statistics = place.run([rows(3000), rows(7, 3000)], routingKey=queue, maxInFlight=500)
    assert (statistics.messages, statistics.resent, statistics.discarded) == (3007, 0, 0)
    assert place.bodies(queue, 3007) == list(range(3007))


def test_exchanges_of_a_column(place: Place) -> None:
    other = place.exchange("fanout")
    queues = [place.queue(bound_to=other), place.queue()]
    batch = rows(3, exchange=[other, None, other], routing_key=["", queues[1], "x"])
    assert place.run([batch], NAMED, exchangeFromColumn=True).messages == 3
    assert [place.bodies(queues[0], 2), place.bodies(queues[1], 1)] == [[0, 2], [1]]


# --- what cannot be routed


@pytest.mark.parametrize("exchange", ["", "direct", "topic"])
def test_what_no_queue_gets_is_named_by_row_or_discarded(place: Place, exchange: str) -> None:
    name = place.exchange(exchange) if exchange else ""
    queue = place.queue(bound_to=name)
    keys = [queue, None, queue, "unbound", "", queue]
    with pytest.raises(Unroutable) as caught:
        place.run([rows(6, routing_key=keys)], KEYED, exchange=name)
    text = (
        f"Cannot publish 3 message(s), the first is row 1 of partition 1 in batch 7 for exchange '{name}' with routing"
    )
    assert text in str(caught.value)
    place.bodies(queue, 3)
    statistics = place.run([rows(6, routing_key=keys)], KEYED, exchange=name, onUnroutable="discard")
    assert (statistics.messages, statistics.discarded) == (3, 3)
    assert place.bodies(queue, 3) == [0, 2, 5]


def test_a_queue_that_is_deleted_during_a_task_fails_it(place: Place) -> None:
    queue = place.queue()
    with pytest.raises(Unroutable, match=rf"message\(s\), the first is row \d+ .* with routing key '{queue}'"):
        place.run(and_then(lambda: place.client.delete_queue(queue)), routingKey=queue)


def test_a_missing_exchange_is_refused_before_anything_is_sent(place: Place) -> None:
    queue = place.queue()
    batch = rows(3, exchange=[None, "no-such-exchange", None], routing_key=queue)
    with pytest.raises(PublishFailed, match=r"row 1 .* for exchange 'no-such-exchange': there is no such exchange"):
        place.run([batch], NAMED, exchangeFromColumn=True)
    assert place.run([rows(1)], routingKey=queue).messages == 1
    assert place.bodies(queue, 1) == [0]


@pytest.mark.parametrize("unroutable", ["fail", "discard"])
def test_an_exchange_that_is_deleted_during_a_task_fails_it(place: Place, unroutable: str) -> None:
    """Broker-J routes what comes then to the queue of this name, and confirms it.

    RabbitMQ removes the bindings first: a message that comes between that and the end of the exchange is returned.
    """
    name = place.queue()
    place.client.declare_exchange(name, "direct")
    place.client.bind(name, name, name)
    options: dict[str, Any] = {"exchange": name, "routingKey": name, "onUnroutable": unroutable}
    with pytest.raises(PublishFailed, match=rf"for exchange '{name}'.*(was deleted|404|no queue is bound)") as caught:
        place.run(and_then(lambda: place.client.delete_exchange(name)), **options)
    assert unroutable == "fail" or not isinstance(caught.value, Unroutable)
    assert caught.value.row is not None


# --- what the broker does not take


def limited(place: Place) -> str:
    """A queue that takes ten messages, or a few more, and refuses others."""
    if place.kind == "brokerj":
        limit: dict[str, Any] = {"qpid.max_count": 10, "qpid.policy_type": "reject"}
        return place.queue(**limit)
    return place.queue(x_max_length=10, x_overflow="reject-publish")


def test_a_full_queue_fails_the_task_even_if_unroutable_messages_may_be_discarded(place: Place) -> None:
    queue = limited(place)
    options: dict[str, Any] = {"routingKey": queue, "onUnroutable": "discard", "retry.maxAttempts": 1}
    with pytest.raises(PublishFailed, match=r"message\(s\), the first is row \d+ of .* with routing key") as caught:
        place.run([rows(2000)], **options)
    assert not isinstance(caught.value, Unroutable)


def test_what_a_full_queue_refuses_arrives_once_when_it_has_room(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """RabbitMQ 3.10 also refuses messages for a quorum queue that has lost its leader."""
    queue, count = limited(place), 300 if place.kind == "brokerj" else 3000
    client = place.connect()
    found: list[int] = []

    def consume() -> None:
        wait_until(lambda: "no queue took" in caplog.text, "a refusal")
        consumer = client.subscribe(queue, accept=False)
        while len(found) < count:
            found.extend(int(message.body) for message in consumer.take(1000))

    thread = threading.Thread(target=consume)
    thread.start()
    statistics = place.run([rows(count // 2), rows(count // 2, count // 2)], routingKey=queue)
    thread.join(60)
    assert Counter(found) == Counter(range(count))
    assert (statistics.messages, statistics.resent, statistics.discarded) == (count, 0, 0)


def test_a_foreign_user_id_is_refused_and_its_row_named(rabbit: Place) -> None:
    queue = rabbit.queue()
    schema = StructType().add("body", "string").add("user_id", "string")
    batch = rows(3, user_id=[rabbit.broker.username, "other", None])
    with pytest.raises(PublishFailed, match=r"row 1 of .*406: .*user_id property set to 'other'"):
        rabbit.run([batch], schema, routingKey=queue)


def test_an_expiration_that_is_too_far_is_refused_and_its_row_named(rabbit: Place) -> None:
    queue = rabbit.queue()
    schema = StructType().add("body", "string").add("ttl", "long")
    batch = rows(3, ttl=[1000, 1 << 45, 5])
    with pytest.raises(PublishFailed, match=r"row 1 of .*406: .*invalid expiration '35184372088832'"):
        rabbit.run([batch], schema, routingKey=queue)


@pytest.mark.parametrize("rabbit", ["rabbitmq"], indirect=True)  # 3.10 takes 128 MiB
def test_a_message_that_is_too_large_is_refused_and_its_row_named(rabbit: Place) -> None:
    queue = rabbit.queue()
    batch = pa.RecordBatch.from_pydict({"body": ["x", "x" * ((16 << 20) + 1), "y"]})
    with pytest.raises(PublishFailed, match=r"row 1 of .*406: .*message size 16777217 is larger than"):
        rabbit.run([batch], routingKey=queue)


def test_an_exchange_that_the_login_may_not_write_to(rabbit: Place) -> None:
    queue = rabbit.queue(bound_to="amq.direct")
    login: dict[str, Any] = {"username": "trader", "password": rabbit.node.config.users["trader"]}
    rabbit.node.set_rights("trader", "default", Rights(write="^amq.topic$"))
    try:
        with pytest.raises(PublishFailed, match=r"row 0 .* exchange 'amq.direct'.*403: ACCESS_REFUSED - .*access to"):
            rabbit.run([rows(3)], exchange="amq.direct", routingKey=queue, **login)
    finally:
        rabbit.node.set_rights("trader", "default", Rights())


# --- brokers that block, connections that end


def while_blocked(place: Place, run: Callable[[], Any]) -> Any:
    """The result of a task that begins while the broker is out of memory, which ends when the task waits."""
    found: list[Any] = []
    node = place.node
    task = threading.Thread(target=lambda: found.append(run()))
    node.set_memory_alarm(True)
    try:
        task.start()
        wait_until(
            lambda: "blocked" in node.evaluate("rabbit_networking:connection_info_all([state])"),
            "the connection to be blocked",
        )
    finally:
        node.set_memory_alarm(False)
    task.join(60)
    return found[0]


def test_a_broker_that_is_out_of_memory_is_waited_for(rabbit: Place) -> None:
    queue = rabbit.queue()
    statistics = while_blocked(rabbit, lambda: rabbit.run([rows(2000), rows(2000, 2000)], routingKey=queue))
    assert (statistics.messages, statistics.resent) == (4000, 0)
    assert rabbit.bodies(queue, 4000) == list(range(4000))


def test_a_broker_that_blocks_for_too_long_fails_the_task(rabbit: Place) -> None:
    queue = rabbit.queue()
    rabbit.node.set_memory_alarm(True)
    try:
        with pytest.raises(PublishFailed, match=r"has blocked its publishers for \d+ s: .*option blockedTimeout=1 s"):
            rabbit.run([rows(10)], routingKey=queue, blockedTimeout=1)
    finally:
        rabbit.node.set_memory_alarm(False)


def test_a_connection_that_the_broker_closes_is_made_again(rabbit: Place) -> None:
    queue = rabbit.queue()

    def close() -> None:
        everyone = "[rabbit_networking:close_connection(Pid, <<>>) || Pid <- rabbit_networking:connections()]"
        rabbit.node.evaluate(f"{everyone}, ok")

    statistics = rabbit.run(and_then(close), routingKey=queue)
    assert (statistics.messages, statistics.retries) == (200, 1)
    rabbit.client = rabbit.connect()
    count = rabbit.count(queue)
    assert 200 <= count <= 200 + statistics.resent
    assert set(rabbit.bodies(queue, count)) == set(range(200))


def _die_when_synced(point: str) -> None:
    if point == crashpoints.SYNCED:
        os.kill(os.getpid(), signal.SIGKILL)


def killed(run: Callable[[], Any]) -> None:
    """Run a task in another process, which is killed when the broker has confirmed every row."""
    pid = os.fork()
    if not pid:
        try:
            crashpoints.reached = _die_when_synced
            run()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def test_rows_of_a_task_that_was_killed_have_the_same_ids_when_they_come_again(place: Place) -> None:
    queue = place.queue()

    def run() -> Any:
        return place.run([rows(60), rows(40, 60)], routingKey=queue, stableMessageId=True)

    killed(run)
    assert run().messages == 100
    found = [(int(message.body), message.properties.message_id) for message in place.received(queue, 200)]
    assert Counter(found) == {(number, f"the-query-7-1-{number}"): 2 for number in range(100)}


# --- what the protocol cannot do


def test_exactly_once_is_refused_before_anything_is_sent(rabbit: Place) -> None:
    given = {"protocol": "auto", "deliveryGuarantee": "exactly-once", "transactionalId": "writer"}
    options = rabbit.options(**given)
    with pytest.raises(
        UnsupportedModeError, match=r"prepared transactions.*protocol=0-10 if .* Broker-J.*stableMessageId=true"
    ):
        CommitCoordinator(options, connections=rabbit.pool).commit([PreparedBranch("q", 1, 0)], 1)
