"""What brokers do not take of a task (0-10: rejects; 0-9-1: returns, nacks, blocking), and its errors."""

from __future__ import annotations

import pickle
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import StructType

from amqp_core.errors import (
    ChannelClosed,
    ConfirmsMissing,
    ConnectionFailed,
    ConnectionLost,
    InternalError,
    PublishingBlocked,
)
from amqp_core.v0_9 import spec
from amqp_core.v0_9.driver import PUBLISHING
from amqp_spark.arrow.encode import MessagePlan, TaskId
from amqp_spark.errors import PublishFailed, Unroutable
from amqp_spark.options import SinkOptions
from amqp_spark.sink.at_least_once import MOST_REFUSALS, AtLeastOnce
from amqp_spark.sink.connections import Connections
from amqp_spark.sink.task_writer import TaskWriter
from tests.support.fake_broker import FakeBroker, Script
from tests.support.fakepeer_0_9 import FakePeer
from tests.support.sink_task import Task, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from amqp_core.address import ConnectOptions
    from amqp_core.api import Client
    from amqp_spark.sink.statistics import Statistics
    from tests.support.fakepeer_0_9 import Peer

pytestmark = pytest.mark.usefixtures("no_time_passes")


def test_rejects_fail_the_task_with_count_first_row_and_target() -> None:
    task = Task(FakeBroker(Script(rejects={2: 1, 4: 1})))
    with pytest.raises(Unroutable) as caught:
        task.run(rows(3), rows(3, 3))
    assert str(caught.value).startswith(
        "[AMQP_REJECTED_AS_UNROUTABLE] Cannot publish 1 message(s), the first is row 2 of partition 3 in batch 12 "
        "for exchange 'amq.direct' with routing key 'k': "
        "the broker rejected it with code 1 (so it is): no queue is bound"
    )
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), str(copy), copy.count) == (Unroutable, str(caught.value), 1)


def test_unroutable_rejects_can_be_discarded_and_are_counted() -> None:
    broker = FakeBroker(Script(rejects={2: 1, 3: 1, 5: 1}))
    task = Task(broker, onUnroutable="discard")
    statistics = task.run(rows(8), rows(1, 8))
    assert (statistics.messages, statistics.discarded) == (6, 3)
    # sent again with accept-mode none (1): a queue that is only full would show itself
    again = [(body, mode) for body, mode in zip(task.bodies, broker.modes, strict=True) if mode]
    assert again == [(2, 1), (3, 1), (5, 1)]
    assert sorted(task.bodies) == sorted([*range(9), 2, 3, 5])


def test_what_is_rejected_again_although_it_asks_for_no_accept_is_not_sent_for_ever() -> None:
    broker = FakeBroker(Script(rejects=dict.fromkeys(range(100), 1)), qpidd=True)
    with pytest.raises(Unroutable, match="rejected it with code 1"):
        Task(broker, {"onUnroutable": "discard"}).run(rows(1))
    assert len(broker.taken) == 2


def test_a_full_queue_is_not_taken_for_an_unroutable_message() -> None:
    task = Task(FakeBroker(Script(rejects={2: 1}, full=True)), onUnroutable="discard")
    with pytest.raises(PublishFailed, match=r"partition 3 in batch 12 .*506: Maximum depth exceeded"):
        task.run(rows(6))


def test_a_loss_after_rejects_that_may_be_discarded_forgets_none() -> None:
    broker = FakeBroker(Script(rejects={2: 1}, breaks_after=4, completes=4))
    task = Task(broker, onUnroutable="discard")
    statistics = task.run(rows(6))
    assert (statistics.messages, statistics.discarded) == (5, 1)
    assert sorted(task.bodies) == [0, 1, 2, 2, 3, 4, 5]


def test_a_loss_is_the_error_where_only_discarded_messages_were_not_confirmed() -> None:
    """On 0-9-1 a message that was returned is neither in doubt nor sent again, although its confirm has not come."""
    broker = FakeBroker(Script(rejects={2: 312}, breaks_at_finish=True, completes=2), protocol="0-9-1")
    task = Task(broker, {"retry.maxAttempts": 0}, onUnroutable="discard")
    with pytest.raises(ConnectionLost):
        task.run(rows(3))


def test_a_full_queue_fails_the_task_whatever_is_said_of_unroutable_ones() -> None:
    task = Task(FakeBroker(Script(rejects={2: 1, 4: 0})), onUnroutable="discard")
    with pytest.raises(PublishFailed, match=r"row 4 .* rejected it with code 0 \(so it is\)\.") as caught:
        task.run(rows(6))
    assert not isinstance(caught.value, Unroutable)


def test_a_reject_before_a_loss_is_not_forgotten() -> None:
    task = Task(FakeBroker(Script(rejects={1: 1}, breaks_after=3, completes=3)))
    with pytest.raises(Unroutable, match="row 1 "):
        task.run(rows(6))


def test_a_refused_transfer_is_named_and_not_tried_again() -> None:
    broker = FakeBroker(Script(refuses=4))
    task = Task(broker)
    with pytest.raises(
        PublishFailed,
        match=r"^\[AMQP_PUBLISH_REFUSED\] Cannot publish row 4 of partition 3 .* exchange 'amq.direct' .* 404: gone",
    ):
        task.run(rows(3), rows(3, 3))
    assert (len(broker.clients), broker.clients[0].ended, task.waits) == (1, "discarded", [])


def test_an_exception_without_command_names_the_task() -> None:
    task = Task(FakeBroker(Script(breaks_after=1, error=InternalError(541, None, "failed inside"))))
    with pytest.raises(
        PublishFailed,
        match=r"^\[AMQP_PUBLISH_REFUSED\] Cannot publish partition 3 .* exchange 'amq.direct': .*541: failed inside",
    ):
        task.run(rows(3))


@pytest.mark.parametrize("code", [320, 504])
def test_a_channel_that_the_broker_closed_for_its_own_reasons_is_no_refusal(code: int) -> None:
    broker = FakeBroker(
        Script(breaks_after=2, completes=1, error=ChannelClosed(code, None, "because")), protocol="0-9-1"
    )
    task = Task(broker)
    statistics = task.run(rows(4))
    assert (statistics.messages, statistics.retries, statistics.resent) == (4, 1, 1)
    assert task.bodies == [0, 1, 1, 2, 3]

    broker = FakeBroker(*[Script(breaks_after=0, error=ChannelClosed(code, None, "because"))] * 3, protocol="0-9-1")
    with pytest.raises(ChannelClosed, match=f"{code} because"):
        Task(broker, {"retry.maxAttempts": 2}).run(rows(4))


def published_by_a_client(count: int, **given: object) -> Statistics:
    """Run a task of so many rows, with real clients of 0-9-1."""
    options = SinkOptions.parse({"protocol": "0-9-1", "routingKey": "q", "retry.maxDelay": 0.02} | given)
    with closing(Connections()) as pool:
        plan = MessagePlan.build(StructType().add("body", "string"), options)
        task = TaskWriter(plan, AtLeastOnce(options, TaskId("the-query", 7, 1), connections=pool))
        return task.run([rows(count).select(["body"])])


def test_a_task_goes_on_when_a_real_client_loses_its_channel() -> None:
    """After a message that was confirmed, and before any; LavinMQ closes it so while its disk is nearly full."""
    found: list[bytes] = []
    closes: list[Callable[[Peer], object]] = [
        lambda peer: peer.channels[PUBLISHING].close(504, "because"),
        lambda peer: peer.channels[PUBLISHING].close(320, "because"),
        lambda peer: peer.refuse(406, "PRECONDITION_FAILED - Server low on disk space"),
    ]

    def script(peer: Peer) -> None:
        peer.open()
        if closes:
            peer.published(3)
            if len(closes) == 3:
                peer.ack(1)
            closes.pop(0)(peer)
        peer.acking = True
        peer.serve()
        found.extend(message.content.body for message in peer.messages)

    with FakePeer(script) as server:
        url = f"amqp://127.0.0.1:{server.port}"
        statistics = published_by_a_client(5, url=url)
    assert (statistics.messages, statistics.retries) == (5, 3)
    assert set(found) >= {b"row-%04d" % number for number in range(1, 5)}, "what was not confirmed came again"


def test_after_a_loss_the_next_host_is_tried_first() -> None:
    """The first one takes connections, but none of them lives for long: a proxy before a node that is gone."""
    found: list[bytes] = []

    def lost(peer: Peer) -> None:
        peer.open()
        peer.published()

    def good(peer: Peer) -> None:
        peer.acking = True
        peer.open()
        peer.serve()
        found.extend(message.content.body for message in peer.messages)

    with FakePeer(lost) as first, FakePeer(good) as second:
        url = f"amqp://127.0.0.1:{first.port},127.0.0.1:{second.port}"
        statistics = published_by_a_client(3, url=url, **{"retry.maxAttempts": 1})
    assert (statistics.messages, statistics.retries) == (3, 1)
    assert found == [b"row-0000", b"row-0001", b"row-0002"]


@pytest.mark.parametrize(("qpidd", "frame"), [(True, 65535), (False, 4096)])
def test_a_broker_of_another_kind_cannot_take_over(qpidd: bool, frame: int) -> None:
    broker = FakeBroker(Script(breaks_after=1))
    task = Task(broker)

    def upstream() -> Iterator[pa.RecordBatch]:
        yield rows(1)
        broker.qpidd, broker.max_frame_size = qpidd, frame
        yield rows(1, 1)

    with pytest.raises(PublishFailed, match=r"another kind \(AMQP 0-10\) or takes smaller frames"):
        task.run_from(upstream())
    assert broker.taken == [broker.taken[0]]
    assert [client.ended for client in broker.clients] == ["discarded"] * 2


# --- AMQP 0-9-1: returns, confirms, and brokers that block


@pytest.fixture
def rabbit() -> FakeBroker:
    return FakeBroker(protocol="0-9-1")


def test_a_broker_that_returns_is_asked_for_the_exchange_only(rabbit: FakeBroker) -> None:
    assert Task(rabbit).run(rows(4000), rows(1000, 4000)).messages == 5000
    assert rabbit.asked == {"exchange amq.direct": 2}
    with pytest.raises(PublishFailed, match="there is no such exchange"):
        Task(rabbit, exchange="missing").run(rows(3))


@pytest.mark.parametrize("key", [None, "", "unbound"])
def test_a_returned_message_is_unroutable_whatever_its_key(key: str | None) -> None:
    rabbit = FakeBroker(Script(rejects={1: 312, 3: 312}), protocol="0-9-1")
    with pytest.raises(Unroutable) as caught:
        Task(rabbit).run(rows(4, routing_key=["k", key, "k", key]))
    assert str(caught.value) == (
        "[AMQP_UNROUTABLE] Cannot publish 2 message(s), the first is row 1 of partition 3 in batch 12 for exchange "
        f"'amq.direct' with routing key '{key or ''}': no queue is bound for it. Create the queue or the binding, or "
        "set onUnroutable=discard to drop such messages."
    )


def test_returned_messages_are_discarded_without_another_look(rabbit: FakeBroker) -> None:
    rabbit.scripts.append(Script(rejects={1: 312, 3: 312}, breaks_after=6, completes=6))
    task = Task(rabbit, onUnroutable="discard")
    statistics = task.run(rows(8))
    assert (statistics.messages, statistics.discarded) == (6, 2)
    assert task.bodies == list(range(8)), "none is sent twice"


def test_a_full_queue_fails_the_task_even_if_unroutable_messages_may_be_discarded(rabbit: FakeBroker) -> None:
    rabbit.scripts += [Script(rejects={1: 312, 3: 0, 8: 0}), *[Script(rejects={0: 0})] * 10]
    task = Task(rabbit, onUnroutable="discard")
    with pytest.raises(PublishFailed, match="row 3 ") as caught:
        task.run(rows(8))
    assert not isinstance(caught.value, Unroutable)
    assert len(task.waits) == MOST_REFUSALS


def test_a_returned_message_among_nacked_ones_is_what_fails_the_task(rabbit: FakeBroker) -> None:
    """What is nacked would be sent again, so that it is not the cause."""
    rabbit.scripts.append(Script(rejects={1: 0, 3: 312, 4: 0, 6: 312}))
    with pytest.raises(
        Unroutable, match=r"^\[AMQP_UNROUTABLE\] Cannot publish 2 message\(s\), .* row 3 of partition 3"
    ):
        Task(rabbit).run(rows(8))


def test_nacked_messages_are_sent_again_on_another_connection(rabbit: FakeBroker) -> None:
    """A channel of RabbitMQ 3.10 that has met a queue without its leader nacks until that node is back."""
    rabbit.scripts += [Script(rejects=dict.fromkeys((1, 3, 4, 8, 9, 10), 0)), Script()]
    task = Task(rabbit)
    statistics = task.run(rows(8))
    assert (statistics.messages, statistics.retries, statistics.resent) == (8, 1, 0)
    assert task.bodies == [*range(8), 1, 3, 4, 1, 3, 4]


def test_what_was_nacked_on_a_given_up_connection_does_not_count_as_unknown(rabbit: FakeBroker) -> None:
    """The second connection has confirmed or nacked all that the first one left in doubt."""
    rabbit.scripts += [Script(breaks_after=5), Script(rejects={0: 0, 8: 0})]
    connections, connect = 0, rabbit.connect

    def connecting(options: ConnectOptions) -> Client:
        nonlocal connections
        connections += 1
        if connections > 2:
            raise ConnectionFailed("connection refused")
        return connect(options)

    task = Task(rabbit, {"retry.maxAttempts": 2})
    task.pool = Connections(connecting)
    with pytest.raises(ConnectionFailed, match=r"^connection refused$"):
        task.run(rows(8))


def test_a_broker_that_blocks_for_too_long_fails_the_task_and_the_option_is_named(rabbit: FakeBroker) -> None:
    rabbit.scripts.append(Script(breaks_after=2, error=PublishingBlocked("fake:5672", 90.4, "low on memory")))
    task = Task(rabbit, blockedTimeout=90)
    with pytest.raises(PublishFailed) as caught:
        task.run(rows(8))
    assert str(caught.value).startswith(
        "[AMQP_PUBLISHING_BLOCKED_TOO_LONG] Cannot publish partition 3 in batch 12: fake:5672 has blocked its "
        "publishers for 90 s: low on memory, and option blockedTimeout=90 s is over. Give"
    )
    [client] = rabbit.clients
    assert (client.publishers[0].blocked_timeout_s, client.ended, task.waits) == (90.0, "discarded", [])


def test_a_broker_that_confirms_nothing_for_too_long_fails_the_task(rabbit: FakeBroker) -> None:
    rabbit.scripts.append(Script(breaks_after=2, error=ConfirmsMissing("fake:5672", 90.0, "2")))
    with pytest.raises(PublishFailed) as caught:
        Task(rabbit, blockedTimeout=90).run(rows(8))
    assert str(caught.value).startswith(
        "[AMQP_PUBLISHING_BLOCKED_TOO_LONG] Cannot publish partition 3 in batch 12: fake:5672 has confirmed none of 2 "
        "message(s) for 90 s, and option blockedTimeout=90 s is over. Give"
    )


def test_a_channel_that_stays_stopped_fails_the_task_and_no_connection_fills_the_queue_further() -> None:
    """Broker-J stops each channel whose message it has put into a full queue, also one of a new connection."""
    taken: list[int] = []

    def script(peer: Peer) -> None:
        peer.open()
        peer.published(3)
        taken.append(3)
        peer.flow(active=False)
        peer.ack(3, multiple=True)
        peer.serve()

    with FakePeer(script) as server:
        given = {"url": f"amqp://127.0.0.1:{server.port}", "protocol": "0-9-1", "routingKey": "q", "maxInFlight": 3}
        options = replace(SinkOptions.parse({**given, "retry.maxDelay": 0.02}), blocked_timeout=0.3)
        with closing(Connections()) as pool:
            plan = MessagePlan.build(StructType().add("body", "string"), options)
            task = TaskWriter(plan, AtLeastOnce(options, TaskId("the-query", 7, 1), connections=pool))
            with pytest.raises(PublishFailed, match=r"AMQP_PUBLISHING_BLOCKED_TOO_LONG.*channel.flow"):
                task.run([rows(9).select(["body"])])
    assert taken == [3]


def test_a_broker_of_another_protocol_cannot_take_over(rabbit: FakeBroker) -> None:
    rabbit.scripts.append(Script(breaks_after=1))

    def upstream() -> Iterator[pa.RecordBatch]:
        yield rows(1)
        rabbit.protocol = "0-10"
        yield rows(1, 1)

    with pytest.raises(PublishFailed, match=r"of another kind \(AMQP 0-10\)"):
        Task(rabbit).run_from(upstream())


def test_a_connection_that_is_blocked_behind_the_last_confirm_is_asked_nothing_more() -> None:
    """It would not answer, so that the task would wait for the call timeout, although all is confirmed."""
    peers: list[Peer] = []

    def script(peer: Peer) -> None:
        peers.append(peer)
        peer.answers[spec.ExchangeDeclare] = spec.ExchangeDeclareOk()
        peer.open()
        if len(peers) == 1:
            peer.published(3)
            peer.send(spec.ConnectionBlocked(reason="low on memory"), channel=0)
            peer.ack(3, multiple=True)
            peer.silent()
        else:
            peer.serve()

    with FakePeer(script) as server:
        given = {"url": f"amqp://127.0.0.1:{server.port}", "protocol": "0-9-1", "exchange": "e", "routingKey": "q"}
        options = SinkOptions.parse({**given, "retry.maxAttempts": 0})
        with closing(Connections()) as pool:
            plan = MessagePlan.build(StructType().add("body", "string"), options)
            task = TaskWriter(plan, AtLeastOnce(options, TaskId("the-query", 7, 1), connections=pool))
            statistics = task.run([rows(3).select(["body"])])
    assert (statistics.messages, statistics.resent) == (3, 0)
    assert [len(peer.messages) for peer in peers] == [3, 0]
    assert any(isinstance(method, spec.ExchangeDeclare) for _, method in peers[1].methods), "the exchange is there"


@pytest.mark.parametrize("breaks", [True, False], ids=["the other connection is lost", "there is no other connection"])
def test_what_a_blocked_connection_has_confirmed_does_not_count_as_unknown(*, breaks: bool) -> None:
    """It has confirmed all that the first one left in doubt; another one cannot be had, or is lost at once. Nor do the
    losses before it count any more."""
    peers: list[Peer] = []

    def script(peer: Peer) -> None:
        peers.append(peer)
        if len(peers) > 2 and not breaks:
            return
        peer.answers[spec.ExchangeDeclare] = spec.ExchangeDeclareOk()
        peer.open()
        if len(peers) > 2:
            return
        peer.published(3)
        if len(peers) == 2:
            peer.send(spec.ConnectionBlocked(reason="low on memory"), channel=0)
            peer.ack(3, multiple=True)
            peer.silent()

    with FakePeer(script) as server, pytest.raises(ConnectionLost if breaks else ConnectionFailed):
        published_by_a_client(3, url=f"amqp://127.0.0.1:{server.port}", exchange="e", **{"retry.maxAttempts": 1})
    assert [len(peer.messages) for peer in peers] == [3, 3, 0, 0]
