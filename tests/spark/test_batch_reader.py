"""Browsing: everything that is there, nothing consumed, bounded memory, credentials out of sight."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

import pytest

from amqp_core.errors import NotFound
from amqp_core.v0_10 import spec
from amqp_spark.datasource import batch_reader
from amqp_spark.datasource.batch_reader import AmqpBatchReader, BrowsePartition
from amqp_spark.errors import UnsupportedModeError
from amqp_spark.options import SourceOptions
from tests.spark.reader_support import BodyPlan
from tests.support.fake_broker import FakeBlock, FakeBroker, FakeSubscription
from tests.support.fakepeer import FakePeer, Peer

if TYPE_CHECKING:
    from amqp_spark.arrow.decode import ColumnPlan


def make(fake: FakeBroker, queue: str = "q", **options: str) -> AmqpBatchReader:
    given = {"url": "amqp://localhost", "queue": queue, "username": "u", "password": "s3cret-word"} | options
    plan = cast("ColumnPlan", BodyPlan())
    return AmqpBatchReader(SourceOptions.parse(given), plan, connector=fake.connect)


def rows(reader: AmqpBatchReader) -> list[tuple[str, int, bytes]]:
    return [
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    ]


def test_every_queue_is_browsed_and_nothing_consumed(fake: FakeBroker) -> None:
    fake.publish("q", *[b"%d" % number for number in range(300)])
    fake.publish("r", b"x")
    reader = make(fake, "q,r")
    for _ in range(2):
        assert rows(reader) == [("q", number, b"%d" % number) for number in range(300)] + [("r", 0, b"x")]
    assert (len(fake.queues["q"]), len(fake.queues["r"])) == (300, 1)
    assert {(each["accept"], each["acquire"]) for each in fake.subscriptions} == {(False, False)}
    assert fake.live == []


@pytest.mark.parametrize(
    ("capability", "text"),
    [
        (
            "browse",
            "A batch read is not supported: .* without being consumed. Use readStream with Trigger.AvailableNow",
        ),
        ("credit", "A batch read needs credit, which the broker fake:5672"),
        ("selectors", "'selector' has the value 'a = 1', and AMQP 0-10 of the broker fake:5672 has no selectors"),
    ],
)
def test_a_broker_that_cannot_browse_is_named(fake: FakeBroker, capability: str, text: str) -> None:
    fake.lacks = frozenset({capability})
    with pytest.raises(UnsupportedModeError, match=text):
        make(fake, selector="a = 1").partitions()
    assert fake.live == []


def test_what_comes_after_the_plan_is_not_read(fake: FakeBroker) -> None:
    fake.publish("q", *[b"a"] * 10)
    reader = make(fake)
    (partition,) = reader.partitions()
    fake.publish("q", *[b"b"] * 10)
    assert sum(batch.num_rows for batch in reader.read(partition)) == 10


def test_a_queue_that_shrank_ends_by_a_flush_round(fake: FakeBroker) -> None:
    fake.publish("q", *[b"a"] * 10)
    reader = make(fake)
    (partition,) = reader.partitions()
    fake.queues["q"].popleft()
    assert sum(batch.num_rows for batch in reader.read(partition)) == 9


def test_an_answer_that_ends_early_is_not_the_end(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    take, empty = FakeSubscription.take_blocks, [True, True]  # in the first round, and behind its probe
    monkeypatch.setattr(FakeSubscription, "take_blocks", lambda *given: [] if empty and empty.pop() else take(*given))
    fake.early_flushes = 1
    fake.publish("q", *[b"a"] * 10)
    assert len(rows(make(fake))) == 10


def test_an_empty_queue_and_one_that_is_not_there(fake: FakeBroker) -> None:
    assert rows(make(fake)) == []
    with pytest.raises(NotFound, match=r"Queue 'nowhere' does not exist on virtual host '.*'\. Create it\.$"):
        make(fake, "nowhere").partitions()


def test_messages_are_asked_for_in_rounds(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_reader, "ROUND_BYTES", 40_000)
    fake.publish("q", *[b"x" * 1000] * 500)
    reader = make(fake)
    (partition,) = reader.partitions()
    unread: list[int] = []
    renew = FakeSubscription.renew

    def watched(subscription: FakeSubscription, messages: int, nbytes: int | None = None) -> None:
        renew(subscription, messages, nbytes)
        unread.append(subscription.credit + sum(len(block.ends) for block in subscription.ready))

    monkeypatch.setattr(FakeSubscription, "renew", watched)
    assert sum(batch.num_rows for batch in reader.read(partition)) == 500
    assert len(unread) >= 500 / 40
    assert max(unread) <= 40


def test_a_broker_that_sends_slowly_does_not_collect_credit(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_reader, "QUIET_SECONDS", 0.001)
    take = FakeSubscription.take_blocks
    outstanding: list[int] = []

    def slow(subscription: FakeSubscription, timeout: float) -> list[FakeBlock]:
        if len(outstanding) % 2 == 0:  # one message, then silence for a while
            fake.publish("q", b"a")
        outstanding.append(subscription.credit)
        return take(subscription, timeout)

    monkeypatch.setattr(FakeSubscription, "take_blocks", slow)
    assert sum(batch.num_rows for batch in make(fake).read(BrowsePartition("q", 20))) == 20
    assert max(outstanding) <= 20


def test_an_abandoned_read_closes_its_connection(fake: FakeBroker) -> None:
    fake.publish("q", *[b"x"] * 500)
    reader = make(fake)
    iterator = reader.read(BrowsePartition("q", 500))
    next(iterator)
    assert len(fake.live) == 1
    del iterator
    assert fake.live == []


def test_credentials_are_not_shown(fake: FakeBroker) -> None:
    reader = make(fake)
    assert "s3cret-word" not in repr(reader) + repr(reader._options) + repr(reader.partitions())


def test_heartbeats_go_on_while_spark_works_on_rows() -> None:
    """A broker gives up a client that was silent for two of them."""
    worked = threading.Event()
    heard: list[bool] = []

    def script(peer: Peer) -> None:
        peer.subscribed()
        peer.transfer(b"x")
        while peer.hears(0.3):  # what belongs to the subscription
            pass
        peer.control(spec.ConnectionHeartbeat())
        heard.append(peer.hears(10))
        worked.set()
        peer.answers[spec.QueueQuery] = lambda _: spec.QueueQueryResult(queue="q", message_count=0)
        peer.serve()

    given = {"url": "amqp://localhost", "queue": "q", "username": "u", "password": "p"}
    with FakePeer(script, heartbeat=2) as server:
        reader = AmqpBatchReader(
            SourceOptions.parse(given),
            cast("ColumnPlan", BodyPlan()),
            connector=lambda _: cast("Any", server.connect(heartbeat=2)),
        )
        found = reader.read(BrowsePartition("q", 1))
        assert next(found).num_rows == 1
        assert worked.wait(30)
        assert list(found) == []
    assert heard == [True]
