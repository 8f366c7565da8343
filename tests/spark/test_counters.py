"""What a consumer counts per block, and what the progress of a query has of it."""

from __future__ import annotations

import json
from array import array
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.blocks import Block
from amqp_core.v0_9 import redelivery as redelivery_0_9
from amqp_core.v0_10 import redelivery, spec
from amqp_core.v0_10._codec import encode_command, encode_header
from amqp_core.v0_10.framing import BODY, COMMAND, HEADER, TRACK_COMMAND, TRACK_CONTROL, encode_assembly
from amqp_spark.datasource.counters import MARK_SECONDS, QueueCounters
from amqp_spark.datasource.receive_buffer import ReceiveBuffer
from tests.spark.driver import Driver
from tests.spark.reader_support import numbers
from tests.spark.transactional_state_support import idle_until
from tests.support.clock import Clock

if TYPE_CHECKING:
    from tests.spark.reader_support import Readers
    from tests.spark.transactional_state_support import Consumers
    from tests.support.fake_broker import FakeBroker


def block(count: int) -> Block:
    return Block(b"x" * 10 * count, array("I", range(10, 10 * count + 1, 10)), 0, largest=10)


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


@pytest.fixture
def held(clock: Clock) -> ReceiveBuffer:
    return ReceiveBuffer(["q"], 1000, clock)


def arrive(counters: QueueCounters, held: ReceiveBuffer, *sizes: int, again: bool = False) -> None:
    blocks = [block(size) for size in sizes]
    for each in blocks:
        held.buffers["q"].append(each)
    counters.arrived(blocks, held.buffers["q"].received, held.clock(), again=again)


def plan(held: ReceiveBuffer, end: int) -> None:
    buffer = held.buffers["q"]
    buffer.fix(end, 10 * (end - buffer.planned))


def test_messages_and_bytes(held: ReceiveBuffer) -> None:
    counters = QueueCounters()
    arrive(counters, held, 3, 4)
    arrive(counters, held, 5, again=True)
    found = counters.report(held.buffers["q"], held)
    assert (found["received"], found["receivedBytes"], found["redelivered"]) == (12, 120, 5)
    assert (found["heldBytes"], found["bufferBytes"], found["waiting"]) == (120, 1000, 12)


def test_the_age_of_the_oldest_message_that_is_not_accepted(held: ReceiveBuffer, clock: Clock) -> None:
    counters, buffer = QueueCounters(), held.buffers["q"]

    def age() -> object:
        return counters.report(buffer, held)["oldestSeconds"]

    assert age() == 0.0
    arrive(counters, held, 5)
    clock.now += MARK_SECONDS / 2
    arrive(counters, held, 5)  # as old as those before
    clock.now += 10
    arrive(counters, held, 5)
    assert age() == 10.5
    plan(held, 12)
    assert age() == 10.5
    buffer.accept(9)
    assert age() == 10.5
    buffer.accept(10)
    assert age() == 0.0
    clock.now += 3
    assert age() == 3.0
    plan(held, 15)
    buffer.accept(15)
    assert age() == 0.0


def test_a_lost_session_repeats_what_spark_has_in_batches(held: ReceiveBuffer, clock: Clock) -> None:
    counters, buffer = QueueCounters(), held.buffers["q"]
    arrive(counters, held, 10)
    plan(held, 4)
    buffer.accept(4)
    plan(held, 7)
    counters.session_ended(buffer, repeats=True)
    buffer.new_incarnation()
    assert (counters.lost, counters.repeated) == (1, 3)
    clock.now += 5
    assert counters.report(buffer, held)["oldestSeconds"] == 5.0  # 3 messages are in a batch
    counters.session_ended(buffer, repeats=True)  # it came to nothing: they are not counted twice
    buffer.new_incarnation()
    assert (counters.lost, counters.repeated) == (2, 3)
    arrive(counters, held, 6)
    assert counters.report(buffer, held)["received"] == 16
    buffer.accept(7)
    assert counters.report(buffer, held)["oldestSeconds"] == 0.0


def test_a_lost_session_with_nothing_in_batches_has_no_age(held: ReceiveBuffer, clock: Clock) -> None:
    counters, buffer = QueueCounters(), held.buffers["q"]
    arrive(counters, held, 10)
    counters.session_ended(buffer, repeats=True)
    buffer.new_incarnation()
    clock.now += 5
    assert counters.report(buffer, held)["oldestSeconds"] == 0.0


def test_at_most_once_keeps_its_messages(held: ReceiveBuffer, clock: Clock) -> None:
    counters, buffer = QueueCounters(), held.buffers["q"]
    arrive(counters, held, 10)
    counters.session_ended(buffer, repeats=False)
    buffer.new_incarnation(keep_waiting=True)
    clock.now += 5
    assert (counters.repeated, counters.report(buffer, held)["oldestSeconds"]) == (0, 5.0)


def test_credit_without_a_limit_is_none(held: ReceiveBuffer) -> None:
    counters = QueueCounters()
    counters.credit = (1 << 31) - 1
    assert counters.report(held.buffers["q"], held)["credit"] is None


# --- in the progress of a query


def test_the_progress_has_the_counts_beside_the_offsets(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *numbers(10))
    driver = Driver(readers(mode="REJECT"))
    driver.rows(10)
    driver.latest()
    entry = through(driver)["q"]
    assert entry.keys() - {"backlog"} == {"epoch", "metrics", "position", "version"}
    assert entry["metrics"]["received"] == 10
    assert entry["metrics"]["lostSessions"] == entry["metrics"]["rejected"] == 0
    assert entry["metrics"]["credit"] > 0


def through(driver: Driver) -> Any:
    return json.loads(json.dumps(driver.reader.reportLatestOffset()))


def test_a_lost_session_shows_in_the_progress(fake: FakeBroker, readers: Readers) -> None:
    fake.publish("q", *numbers(10))
    driver = Driver(readers())
    driver.rows(10)
    fake.cut()
    fake.wait(lambda: through(driver)["q"]["metrics"]["lostSessions"] == 1)


def test_transactions_and_the_spool_show_in_the_progress(fake: FakeBroker, consumers: Consumers) -> None:
    fake.publish("q", *numbers(20))
    driver = Driver(consumers(maxMessagesPerTrigger=10))
    driver.trigger_until_rows()
    while driver.trigger(fail=True) is None:
        pass
    fake.wait(lambda: through(driver)["q"]["metrics"]["committed"] == 2)
    found = through(driver)["q"]["metrics"]
    assert found["ownedBatches"] == 1
    assert found["spoolBytes"] > 0
    assert (found["rolledBack"], found["repeated"]) == (0, 0)
    driver.trigger_until_rows()
    idle_until(driver, lambda: through(driver)["q"]["metrics"]["spoolBytes"] == 0)
    assert through(driver)["q"]["metrics"]["ownedBatches"] == 0


# --- whether the first message of a block was delivered before


def transfer_0_10(*, redelivered: bool, before: bytes = b"") -> bytes:
    properties = spec.DeliveryProperties(redelivered=redelivered, routing_key="k")
    segments = [
        (COMMAND, encode_command(spec.MessageTransfer(destination="d"))),
        (HEADER, encode_header(properties, spec.MessageProperties(content_length=4))),
        (BODY, b"body"),
    ]
    return before + b"".join(encode_assembly(0, TRACK_COMMAND, segments, 65535))


@pytest.mark.parametrize("redelivered", [False, True])
def test_redelivered_0_10(redelivered: bool) -> None:
    control = b"".join(encode_assembly(0, TRACK_CONTROL, [(0, b"\x02\x07\x00\x00")], 65535))
    for before in (b"", control):
        frames = transfer_0_10(redelivered=redelivered, before=before)
        assert redelivery.first_is_redelivered(Block(frames, array("I", [len(frames)]))) is redelivered


def test_a_message_without_header_or_cut_off_counts_as_new() -> None:
    frames = transfer_0_10(redelivered=True)
    for end in range(len(frames) - len(b"body") - 12):
        redelivery.first_is_redelivered(Block(frames[:end], array("I", [end])))
    assert not redelivery.first_is_redelivered(Block(frames[:20], array("I", [20])))
    assert not redelivery_0_9.first_is_redelivered(Block(b"\x01\x00", array("I", [2])))
    command = b"".join(encode_assembly(0, TRACK_COMMAND, segments_of_command(), 65535))
    assert not redelivery.first_is_redelivered(Block(command, array("I", [len(command)])))


def segments_of_command() -> list[tuple[int, bytes]]:
    return [(COMMAND, encode_command(spec.MessageTransfer(destination="d")))]
