"""The other broker, by script: a server that publishes as qpidd does, for rows of a real Spark."""

from __future__ import annotations

import contextlib
import socket
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PythonException

from amqp_core.v0_10 import spec
from amqp_spark.sink import AmqpBatchSink
from tests.broker.sink_scenarios import rows
from tests.support.fakepeer import QPIDD, FakePeer, Peer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark]

COUNT = 1000


@dataclass
class Qpidd:
    """State shared by the scripts: exchanges, queues and the messages sent to them."""

    exchanges: dict[str, str] = field(default_factory=lambda: {"amq.direct": "direct", "amq.topic": "topic"})
    bound: set[str] = field(default_factory=lambda: {"here"})
    transfers: list[spec.MessageTransfer] = field(default_factory=list)
    asked: Counter[str] = field(default_factory=Counter)
    peers: list[Peer] = field(default_factory=list)

    def attach(self, peer: Peer) -> None:
        """Answer what is asked before rows are sent, and complete nothing unless a sync bit asks."""
        peer.answers[spec.ExchangeQuery] = self._exchange
        peer.answers[spec.QueueQuery] = self._queue
        peer.answers[spec.ExchangeBound] = self._binding
        peer.hooks[spec.MessageTransfer] = self.transfers.append
        self.peers.append(peer)
        peer.open()

    def hang_up(self) -> None:
        """End the connections: a worker keeps its own for the next task."""
        for peer in self.peers:
            with contextlib.suppress(OSError):
                peer.sock.shutdown(socket.SHUT_RDWR)

    def _exchange(self, asked: spec.ExchangeQuery) -> object:
        self.asked["exchange"] += 1
        kind = self.exchanges.get(asked.name or "")
        return spec.ExchangeQueryResult(type=kind, not_found=kind is None)

    def _queue(self, asked: spec.QueueQuery) -> object:
        self.asked["queue"] += 1
        return spec.QueueQueryResult(queue=asked.queue if asked.queue in self.bound else None)

    def _binding(self, asked: spec.ExchangeBound) -> object:
        """An empty key asks whether anything is bound."""
        self.asked["binding"] += 1
        return spec.ExchangeBoundResult(key_not_matched=bool(asked.binding_key) and asked.binding_key not in self.bound)


def sink(server: FakePeer, **options: Any) -> AmqpBatchSink:
    given: dict[str, Any] = {
        "url": f"amqp://127.0.0.1:{server.port}/",
        "routingKey": "here",
        "heartbeat": 0,
        "retry.maxDelay": "0.1",
        "retry.maxAttempts": 1,
    }
    return AmqpBatchSink(**(given | {key.replace("__", "."): value for key, value in options.items()}))


@contextlib.contextmanager
def serving(broker: Qpidd, then: Callable[[Peer], None] | None = None, **settings: Any) -> Iterator[FakePeer]:
    """A server that answers, does ``then``, and completes what is asked for until the test has ended."""

    def script(peer: Peer) -> None:
        broker.attach(peer)
        if then is not None:
            then(peer)
        peer.serve()

    with FakePeer(script, server_properties=QPIDD, **settings) as server:
        try:
            yield server
        finally:
            broker.hang_up()


def test_rows_go_without_accept_and_end_with_one_sync(spark: SparkSession) -> None:
    broker = Qpidd()
    with serving(broker) as server:
        published = sink(server)
        published(rows(spark, COUNT), 0)
    assert len(broker.transfers) == COUNT == published.last.messages
    assert {transfer.accept_mode for transfer in broker.transfers} == {spec.MessageAcceptMode.NONE}


def test_a_broker_that_withholds_completions_is_waited_for(spark: SparkSession) -> None:
    """As above 80 % of a queue's limit: syncs get no answer until a consumer has made room."""
    broker = Qpidd()
    seen_before: list[int] = []

    def withhold(peer: Peer) -> None:
        peer.completing = False
        for _ in range(4):  # one is sent every quarter of the window
            peer.expect(spec.ExecutionSync)
        seen_before.append(len(broker.transfers))
        peer.completing = True
        peer.session.tell_completed()
        peer.flush()

    with serving(broker, withhold) as server:
        published = sink(server, maxInFlight=100)
        published(rows(spark, COUNT), 0)
    assert seen_before == [100]
    assert (published.last.messages, published.last.retries) == (COUNT, 0)
    assert len(broker.transfers) == COUNT


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"routingKey": "nowhere"}, "exchange '' with routing key 'nowhere': no queue is bound for it"),
        ({"routingKey": "nowhere", "exchange": "amq.direct"}, "exchange 'amq.direct' with routing key 'nowhere': no q"),
        ({"routingKey": "", "exchange": "amq.direct"}, "exchange 'amq.direct' with routing key '': its routing key is"),
        ({"exchange": "amq.missing"}, "exchange 'amq.missing': there is no such exchange"),
    ],
)
def test_what_would_be_dropped_silently_is_not_sent(spark: SparkSession, options: dict[str, Any], message: str) -> None:
    broker = Qpidd()
    with serving(broker) as server, pytest.raises(PythonException, match=message):
        sink(server, **options)(rows(spark, COUNT), 0)
    assert broker.transfers == []


def test_a_queue_that_is_deleted_during_a_task_fails_it(spark: SparkSession) -> None:
    """The broker completes what it drops then."""
    broker = Qpidd()

    def delete(peer: Peer) -> None:
        for _ in range(COUNT // 2):
            peer.expect(spec.MessageTransfer)
        broker.bound.clear()

    message = rf"{COUNT:,} message\(s\), the first is row 0 .* 'here': the queue or its binding was deleted"
    with serving(broker, delete) as server, pytest.raises(PythonException, match=message):
        sink(server, exchange="amq.direct")(rows(spark, COUNT), 0)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (506, "ResourceLimitExceeded|refused.* with 506: the queue is full"),
        (403, "UnauthorizedAccess|refused.* with 403: the queue is full"),
    ],
)
def test_a_refusal_names_the_row_and_is_not_tried_again(spark: SparkSession, code: int, message: str) -> None:
    broker = Qpidd()

    def refuse(peer: Peer) -> None:
        def take(transfer: spec.MessageTransfer) -> None:
            broker.transfers.append(transfer)
            if len(broker.transfers) == 700:  # what is refused is not completed before
                peer.completing = False

        peer.hooks[spec.MessageTransfer] = take
        ids = [peer.expect(spec.MessageTransfer)[0] for _ in range(700)]
        peer.exception(code, ids[-1], "the queue is full")

    with serving(broker, refuse) as server:
        with pytest.raises(PythonException, match=rf"row 699 of partition 0 in batch 4 for exchange ''.*({message})"):
            sink(server)(rows(spark, COUNT), 4)
        assert server.connections == 1


def test_small_frames_are_kept_to(spark: SparkSession) -> None:
    broker = Qpidd()
    bodies: list[int] = []

    def look(peer: Peer) -> None:
        bodies.append(peer.connection.max_frame_size)

    with serving(broker, look, max_frame_size=4096) as server:
        published = sink(server)
        published(rows(spark, 20, size=10_000), 0)
    assert bodies == [4096]
    assert published.last.messages == len(broker.transfers) == 20


def test_an_accept_of_each_transfer_says_nothing_and_hurts_nothing(spark: SparkSession) -> None:
    """qpidd accepts what it has dropped, too; only completion counts."""
    broker = Qpidd()

    def accept(peer: Peer) -> None:
        for _ in range(COUNT):
            command_id, _transfer = peer.expect(spec.MessageTransfer)
            peer.send(spec.MessageAccept(transfers=[(command_id, command_id)]))

    with serving(broker, accept) as server:
        published = sink(server)
        published(rows(spark, COUNT), 0)
    assert (published.last.messages, published.last.resent) == (COUNT, 0)
    assert len(broker.transfers) == COUNT
