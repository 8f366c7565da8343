"""The source over a protocol without credit: a limit of unsettled messages, and a socket that is not always read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from amqp_core.errors import ConnectionLost, NotFound, ResourceDeleted
from amqp_spark.datasource import consumer_setup, consumer_watch
from amqp_spark.datasource import unsettled as module
from amqp_spark.datasource.block_server import fetch
from amqp_spark.datasource.receiver import Receiver
from amqp_spark.datasource.unsettled import UnsettledFlowControl
from amqp_spark.options import SourceOptions
from tests.spark.driver import Driver, bodies, running
from tests.spark.reader_support import numbers
from tests.support.clock import Clock
from tests.support.fake_broker import FakeBlock, FakeBroker, transfer_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from amqp_spark.datasource.owner import Owner
    from tests.spark.reader_support import Readers


@pytest.fixture
def fake() -> FakeBroker:
    return FakeBroker(protocol="0-9-1")


@pytest.fixture
def make(fake: FakeBroker) -> Iterator[Callable[..., Receiver]]:
    made: list[Receiver] = []

    def build(queue: str = "q", **given: object) -> Receiver:
        options = {"url": "amqp://localhost", "queue": queue, "retry.maxDelay": 0.02, "bufferBytes": 1 << 20} | given
        made.append(Receiver(SourceOptions.parse(options), connector=fake.connect))
        return made[-1]

    yield build
    for receiver in made:
        receiver.stop()


def test_the_first_limit_follows_from_what_is_owned(fake: FakeBroker) -> None:
    """After a crash a batch is owned, most times, and in doubt: then no small limit comes first."""

    class Recovered:
        """See :class:`amqp_spark.datasource.owner.Owner`."""

        owned = 50, 50 * 100_000
        in_doubt, withheld = True, 0

        def enter(self, _client: object, *, declared: bool) -> bool:
            return not declared

        def most_unsettled(self, most: int | None) -> int | None:
            return most

        def __getattr__(self, _name: str) -> Callable[..., int]:
            return lambda *_given, **_named: 0

    options = SourceOptions.parse({"url": "amqp://localhost", "queue": "q", "bufferBytes": "32m"})
    receiver = Receiver(options, connector=fake.connect, owners=lambda _queue, _held: cast("Owner", Recovered()))
    try:
        receiver.start()
        fake.wait(lambda: bool(fake.subscriptions))
        assert fake.subscriptions[0]["max_unsettled"] == (32 << 20) // 200_000
    finally:
        receiver.stop()


def test_a_batch_is_received_accepted_and_the_next_one_follows(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *numbers(1000))
    driver = Driver(readers(bufferBytes="64k", maxBytesPerTrigger="32k"))
    assert bodies(driver.rows(1000)) == numbers(1000)
    driver.trigger()
    fake.wait(lambda: len(fake.accepted) == 1000)
    assert fake.held() == 0
    (subscription,) = fake.subscriptions
    assert subscription["max_unsettled"] == (64 << 10) // module.FIRST_GUESS_BYTES
    assert subscription["arguments"] is None


@pytest.mark.parametrize("queues", [1, 3])
def test_held_bytes_stay_within_the_buffer_with_messages_of_all_sizes(
    fake: FakeBroker, make: Callable[..., Receiver], queues: int
) -> None:
    budget, large = 4 << 20, 2 << 20
    fake.block_messages = 1
    names = [f"q{number}" for number in range(queues)]
    sizes = [1, 100, 5000, 1, 70_000, large, 1, 300_000, 10, 1_000_000] * 6
    for name in names:
        fake.queues[name] = type(fake.queues["q"])()
        fake.publish(name, *(bytes(size) for size in sizes))
    receiver = make(",".join(names), bufferBytes=budget)
    receiver.start()
    most = 0

    def goes_on() -> bool:
        nonlocal most
        most = max(most, receiver.held.bytes)
        receiver.plan(max_messages=None, max_bytes=1 << 20)
        receiver.accept(receiver.planned())
        return len(fake.accepted) == queues * len(sizes)

    fake.wait(goes_on)
    assert most <= budget + queues * (large + 1000)  # messages come whole: test_unsettled_turns.py has parts of them


def test_what_comes_before_an_answer_and_has_no_room_comes_again_when_there_is_room(
    fake: FakeBroker, make: Callable[..., Receiver], caplog: pytest.LogCaptureFixture
) -> None:
    budget = 1 << 20
    fake.block_messages = 1
    fake.publish("q", *(number + bytes(100_000) for number in numbers(200)))
    receiver = make(bufferBytes=budget)
    receiver.start()
    fake.wait(lambda: any(client.paused for client in fake.live))
    assert receiver.sync(), "the session answers"
    most = before = receiver.held.bytes
    assert before > 0
    assert fake.connects == 1, "there is no room for another one"

    def goes_on() -> bool:
        nonlocal most
        most = max(most, receiver.held.bytes)
        receiver.plan(max_messages=None, max_bytes=budget)
        receiver.accept(receiver.planned())
        return len(fake.accepted) == 200

    fake.wait(goes_on)
    assert fake.connects == 2
    assert most <= budget + 101_000
    assert fake.accepted == [number + bytes(100_000) for number in numbers(200)]
    first, second = (each["max_unsettled"] for each in fake.subscriptions)
    assert first == budget // module.FIRST_GUESS_BYTES
    assert second < first  # type: ignore[operator]
    assert "AMQP_BUFFER_OVERFLOWED" in caplog.text


@pytest.mark.parametrize("transfer", ["inline", "pull"])
def test_a_task_learns_with_which_protocol_its_bytes_came(fake: FakeBroker, readers: Readers, transfer: str) -> None:
    """The reader reconnects to a broker of another protocol with a part of the batch in hand."""
    reader = readers(transfer=transfer, maxTriggerDelay="1h", minMessagesPerTrigger=10)
    driver = Driver(reader)
    fake.publish("q", *numbers(4))
    driver.trigger()
    stream = running(reader)
    assert stream is not None
    receiver = stream._receiver
    fake.wait(lambda: receiver.held.waiting == 4)
    with fake.changed:
        fake.protocol = "0-10"
        receiver.held.buffers["q"].append(FakeBlock(transfer_frames(b"new") * 6, [*range(56, 337, 56)], 9, 56), "0-10")
    rows = driver.trigger_until_rows()
    assert bodies(rows) == [*numbers(4), *[b"new"] * 6]
    assert [row[1] for row in rows] == list(range(10))
    protocols = []
    for part in driver.last_partitions:
        chunks = (
            [each.chunk for each in part.slices]
            if transfer == "inline"
            else [
                chunk
                for each in part.ranges
                for chunk in fetch(part.endpoint, queue="q", epoch=each.epoch, begin=each.begin, end=each.end)
            ]
        )
        protocols += [chunk.protocol for chunk in chunks]
    assert protocols == ["0-9-1", "0-10"]


def test_a_batch_that_waits_for_more_messages_than_may_come_is_planned(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *[b"x" * 3000] * 100)
    driver = Driver(readers(bufferBytes="64k", maxBytesPerTrigger="64k", minMessagesPerTrigger=100))
    assert len(driver.rows(1)) < 100


def test_no_more_messages_come_than_two_batches_may_have(fake: FakeBroker, readers: Readers) -> None:
    """While small batches take long, sessions end again and again, and a queue drops what it gets back too often."""
    fake.publish("q", *numbers(100))
    driver = Driver(readers(maxMessagesPerTrigger=10))
    for batch in range(10):
        assert len(driver.trigger_until_rows()) == 10
        assert fake.held() <= 20, batch
    assert [body for rows in driver.batches for body in bodies(rows)] == numbers(100)


def test_at_most_once_has_no_limit_and_settles_nothing(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *numbers(100))
    driver = Driver(readers(deliveryGuarantee="at-most-once"), available_now=True)
    assert bodies(driver.rows(100)) == numbers(100)
    while driver.trigger() is not None:
        pass
    assert fake.subscriptions[0]["accept"] is False
    assert fake.subscriptions[0]["max_unsettled"] is None


# --- a consumer that gets nothing


@pytest.mark.usefixtures("fast_recounts")
def test_a_consumer_that_gets_nothing_although_there_are_messages_is_replaced(
    fake: FakeBroker, make: Callable[..., Receiver], caplog: pytest.LogCaptureFixture
) -> None:
    receiver = make()
    receiver.start()
    fake.publish("q", b"a")
    fake.wait(lambda: receiver.report()["q"][0] == 1)
    queries = fake.queries
    fake.wait(lambda: fake.queries >= queries + 2)  # a count shows that the message which it holds is not counted
    with fake.changed:
        fake.stalls["q"] = 1
        fake.publish("q", b"b")
    fake.wait(lambda: fake.connects == 2)
    fake.wait(lambda: receiver.report()["q"][0] == 2)
    assert any("AMQP_CONSUMER_STALLED" in record.getMessage() for record in caplog.records)
    assert receiver.failure() is None


def test_sessions_that_bring_nothing_are_replaced_less_and_less_often() -> None:
    """Another consumer may be active alone, while this one waits."""
    clock = Clock()
    watch = consumer_watch.ConsumerWatch("q", clock)
    pauses = []
    for _ in range(8):
        watch.restart()
        begun = clock.now
        stalled = False
        while not stalled:
            clock.now += 1.0
            stalled = watch.is_due() and watch.is_stalled(5, held=0)
        pauses.append(clock.now - begun)
    assert pauses == [12.0, 22.0, 42.0, 82.0, 162.0, 322.0, 602.0, 602.0]
    watch.arrived()
    clock.now += consumer_watch.QUIET_SECONDS
    assert watch.is_due()
    assert not watch.is_stalled(0, held=0)
    assert not watch.is_due()


@pytest.mark.usefixtures("fast_recounts")
def test_an_idle_consumer_is_not_replaced(fake: FakeBroker, make: Callable[..., Receiver]) -> None:
    receiver = make()
    receiver.start()
    queries = fake.queries
    fake.wait(lambda: fake.queries >= queries + 5)
    assert fake.connects == 1


@pytest.mark.usefixtures("fast_recounts")
def test_a_consumer_whose_limit_is_used_up_is_not_watched(
    fake: FakeBroker, make: Callable[..., Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, regulate = 0, UnsettledFlowControl.regulate

    def counted(self: UnsettledFlowControl, *args: Any, **options: Any) -> None:
        nonlocal looks
        looks += 1
        regulate(self, *args, **options)

    monkeypatch.setattr(UnsettledFlowControl, "regulate", counted)
    receiver = make(bufferBytes=8192)
    fake.publish("q", *[b"x"] * 100)
    receiver.start()
    fake.wait(lambda: fake.held() == 4)
    queries, more = fake.queries, looks + 10
    fake.wait(lambda: looks >= more)
    assert fake.queries == queries
    assert fake.connects == 1


@pytest.mark.parametrize("exists", [True, False])
def test_a_cancelled_consumer_is_replaced_unless_the_queue_is_gone(
    fake: FakeBroker, make: Callable[..., Receiver], *, exists: bool
) -> None:
    receiver = make()
    receiver.start()
    fake.wait(lambda: bool(fake.subscriptions))
    with fake.changed:
        if not exists:
            del fake.queues["q"]
        fake.cancels.append(ResourceDeleted(404, None, "the consumer is cancelled", "basic.cancel"))
        fake.changed.notify_all()
    if exists:
        fake.publish("q", b"a")
        fake.wait(lambda: fake.connects == 2)
        fake.wait(lambda: receiver.report()["q"][0] == 1)
    else:
        fake.wait(lambda: isinstance(receiver.failure(), ResourceDeleted))


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_queue_that_is_missing_after_a_lost_connection_may_come_back(
    fake: FakeBroker, make: Callable[..., Receiver], monkeypatch: pytest.MonkeyPatch, *, comes_back: bool
) -> None:
    monkeypatch.setattr(consumer_setup, "RECOVERY_SECONDS", 1e6 if comes_back else 0.05)
    receiver = make()
    receiver.start()
    fake.wait(lambda: bool(fake.subscriptions))
    with fake.changed:
        queue = fake.queues.pop("q")
    fake.cut()
    if comes_back:
        fake.wait(lambda: fake.connects >= 3)  # it was missing at least once
        with fake.changed:
            fake.queues["q"] = queue
        fake.publish("q", b"a")
        fake.wait(lambda: receiver.report()["q"][0] == 1)
    else:
        fake.wait(lambda: isinstance(receiver.failure(), NotFound))


@pytest.mark.parametrize(("count", "warnings"), [(9, 0), (10, 1)])
def test_messages_that_come_near_the_limit_of_deliveries_are_a_warning(
    fake: FakeBroker,
    readers: Readers,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    count: int,
    warnings: int,
) -> None:
    fake.earlier_deliveries = count
    driver = Driver(readers())
    monkeypatch.setattr(consumer_watch, "LOOK_SECONDS", 0.0)
    for round_ in range(3):  # once a minute
        fake.publish("q", *numbers(10, 10 * round_))
        driver.rows(10 * round_ + 10)
    found = [record.getMessage() for record in caplog.records if "x-delivery-limit=-1" in record.getMessage()]
    assert len(found) == warnings
    assert all(f"queue 'q': messages were delivered {count} times before" in text for text in found)


def test_counts_of_deliveries_are_looked_at_once_in_a_while_and_when_a_session_begins() -> None:
    clock = Clock()
    watch = consumer_watch.DeliveryCountWatch("q", clock)
    client: Any = FakeBroker(protocol="0-9-1").connect(None)  # type: ignore[arg-type]
    looks = 0

    def look(_block: object) -> int:
        nonlocal looks
        looks += 1
        return 0

    client.earlier_deliveries = look
    block: Any = None
    for _ in range(10):
        watch.arrived(client, block)
    assert looks == 1
    watch.restart()
    watch.arrived(client, block)
    watch.arrived(client, block)
    assert looks == 2
    clock.now += consumer_watch.LOOK_SECONDS
    watch.arrived(client, block)
    assert looks == 3


def test_the_connection_may_be_lost_while_the_socket_is_not_read(
    fake: FakeBroker, make: Callable[..., Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that takes longer than the broker waits for a reader: all come, and the limit shrinks."""
    monkeypatch.setattr(module, "LONG_PAUSE_SECONDS", 0.0)
    fake.publish("q", *[bytes(8_000)] * 60)
    receiver = make(bufferBytes=100_000)
    receiver.start()

    def has_all_that_it_may() -> bool:  # a limit that has shrunk may be below what fits the buffer
        latest = fake.subscriptions[-1:]
        return any(client.paused for client in fake.live) or fake.held() in [each["max_unsettled"] for each in latest]

    for _ in range(2):
        fake.wait(has_all_that_it_may)
        receiver.plan(max_messages=None, max_bytes=1 << 20)
        fake.cut(ConnectionLost("the broker could not send"))
        receiver.accept(receiver.planned())
        connects = fake.connects
        fake.wait(lambda: fake.connects > connects or bool(fake.live))  # noqa: B023  called at once

    def goes_on() -> bool:
        receiver.plan(max_messages=None, max_bytes=1 << 20)
        receiver.accept(receiver.planned())
        return len(fake.accepted) == 60

    fake.wait(goes_on)
    limits = [each["max_unsettled"] for each in fake.subscriptions]
    assert limits == sorted(limits, reverse=True)  # type: ignore[type-var]
    assert limits[-1] < limits[0]  # type: ignore[operator]
