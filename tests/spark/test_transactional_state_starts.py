"""A start with exactly-once touches nothing of a successor, and nothing when it is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

from amqp_spark import crashpoints
from amqp_spark.datasource.exactly_once import owned_batches, policy
from amqp_spark.errors import OffsetError, StateError
from amqp_spark.spool import spool
from tests.spark.driver import Driver, bodies, running
from tests.spark.reader_support import numbers
from tests.spark.transactional_state_support import (
    Consumers,
    files,
    fresh,
    idle_until,
    planned,
    slow_to_return,
    states,
    stopped,
)

if TYPE_CHECKING:
    from amqp_spark.datasource.receive_buffer import QueueBuffer
    from amqp_spark.state.records import OwnedBatch
    from tests.support.fake_broker import FakeBroker


def test_a_start_that_was_overtaken_deletes_nothing_of_its_successor(
    fake: FakeBroker, consumers: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is suspended between raising the epoch and deleting files without an owner."""
    fake.publish("q", *numbers(10))
    first = Driver(consumers(maxMessagesPerTrigger=10))
    first.rows(10)
    idle_until(first, lambda: not any(state.owned for state in states(fake)))
    stopped(first)
    fake.publish("q", *numbers(20, 10))
    prefix = spool.Spool("/", consumer_id="me", queue="q")._prefix
    (consumers.spool / f"{prefix}1.part").write_bytes(b"left by a kill")
    at_epoch, goes_on = Event(), Event()

    def reached(point: str) -> None:
        if point == crashpoints.EPOCH_RAISED and not at_epoch.is_set():
            at_epoch.set()
            assert goes_on.wait(60)

    monkeypatch.setattr(crashpoints, "reached", reached)
    suspended = Driver(consumers(maxMessagesPerTrigger=10, connectTimeout=1), first)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(suspended.latest)
        assert at_epoch.wait(60)
        fake.cut()
        successor = Driver(consumers(maxMessagesPerTrigger=10), first)
        rows = successor.trigger_until_rows()
        being_written = consumers.spool / f"{prefix}2.part"
        being_written.write_bytes(b"of the successor")
        owned = [batch.file for state in states(fake) for batch in state.owned]
        goes_on.set()
        fake.wait(lambda: not list(consumers.spool.glob("*1.part")))
        call.result(120)
    stopped(suspended)
    assert bodies(rows) == numbers(10, 10)
    assert owned
    assert set(owned) <= set(files(consumers))
    assert being_written.exists()


def test_a_start_that_is_refused_because_of_its_queues_leaves_no_claim(fake: FakeBroker, consumers: Consumers) -> None:
    fake.publish("q", *numbers(30))
    first = planned(consumers)
    for queues in ("q,r", "p,q"):
        wrong = Driver(consumers(queues), first)
        with pytest.raises(OffsetError, match="Read the same queues"):
            wrong.restart_batch()
        stopped(wrong)
    anew = fresh(consumers, "a,q", declare="ifMissing")  # a new checkpoint, so that only the state can refuse it
    with pytest.raises(StateError, match="was used with another list of queues"):
        anew.latest()
    stopped(anew)
    assert len(states(fake)) == 1
    again = Driver(consumers(maxMessagesPerTrigger=10), first)
    assert bodies(again.restart_batch() or []) == numbers(10, 10)


def older_copy_is_refused(
    consumers: Consumers, first: Driver, offsets: list[Any], commits: int, *, because: str
) -> None:
    """A start of the queues q and r with an older copy of the checkpoint of a query fails, and says why."""
    copy = Driver(consumers("q,r"), first)
    copy.offsets, copy.commits = offsets, commits
    with pytest.raises(OffsetError, match=f"AMQP_CHECKPOINT_MISMATCH.*{because}"):
        copy.latest()
    stopped(copy)


def test_a_start_that_is_refused_because_of_one_queue_changes_nothing_of_the_others(
    fake: FakeBroker, consumers: Consumers
) -> None:
    """An older copy of the checkpoint, in which the first queue had no message yet; then the right checkpoint again."""
    first = Driver(consumers("q,r"))
    fake.publish("r", *numbers(10))
    first.rows(10)
    offsets, commits = list(first.offsets), first.commits
    fake.publish("r", *numbers(10, 10))
    first.rows(20)
    idle_until(first, lambda: not any(state.owned for state in states(fake)))
    fake.publish("q", *numbers(10, 20))
    while first.trigger(fail=True) is None:
        pass
    stopped(first)
    older_copy_is_refused(consumers, first, offsets, commits, because="queue 'r'")
    again = Driver(consumers("q,r"), first)
    replayed = bodies(again.restart_batch() or [])
    assert replayed
    assert sorted([*replayed, *bodies(again.rows(10)[len(replayed) :])]) == numbers(10, 20)


def test_an_older_copy_of_the_checkpoint_is_refused_because_of_a_queue_that_had_no_message_yet(
    fake: FakeBroker, consumers: Consumers
) -> None:
    """Its next batch would have an id that the sink has seen with other rows, and skips."""
    first = Driver(consumers("q,r"))
    fake.publish("r", *numbers(10))
    first.rows(10)
    offsets, commits = list(first.offsets), first.commits
    fake.publish("q", *numbers(10, 20))
    first.rows(20)
    idle_until(first, lambda: not any(state.owned for state in states(fake)))
    stopped(first)
    older_copy_is_refused(consumers, first, offsets, commits, because="queue 'q': the checkpoint is at the start, but")
    fake.publish("q", *numbers(10, 30))
    assert bodies(Driver(consumers("q,r"), first).trigger_until_rows())[0] == b"000030"


@pytest.mark.parametrize("known", ["qr", "q"])
@pytest.mark.parametrize("order", ["qr", "rq"])
def test_an_older_copy_of_the_checkpoint_gets_the_batches_that_it_lacks_as_they_were(
    fake: FakeBroker, consumers: Consumers, monkeypatch: pytest.MonkeyPatch, order: str, known: str
) -> None:
    """As after a power cut that took the latest files of the checkpoint, while the state still owns these batches.
    Together they would have the id of the first, which the sink knows and skips. ``known``: queues that had messages in
    the batches that the copy has."""
    slow_to_return(monkeypatch)
    first = Driver(consumers("q,r"))
    for queue in known:
        fake.publish(queue, *numbers(10))
    first.rows(10 * len(known))
    idle_until(first, lambda: not any(state.owned for state in states(fake)))
    offsets, commits = list(first.offsets), first.commits
    run = running(first.reader)
    assert run is not None
    batches = []
    for begin, queue in enumerate(order, 1):
        fake.publish(queue, *numbers(10, 10 * begin))
        fake.wait(lambda: run._receiver.held.waiting == 10)  # a call without a batch would drop the one before
        batches.append(bodies(first.trigger_until_rows()))
    for _start in range(2):
        assert [len(state.owned) for state in states(fake)] == [1, 1]
        fake.cut()
        copy = Driver(consumers("q,r"), first)
        copy.offsets, copy.commits = list(offsets), commits
        copy.rows(20)
        assert [bodies(batch) for batch in copy.batches] == batches


@pytest.mark.parametrize("adopt", [False, True])
def test_a_new_checkpoint_goes_on_although_one_of_its_queues_has_no_message_yet(
    fake: FakeBroker, consumers: Consumers, *, adopt: bool
) -> None:
    """What the consumer has finished with the checkpoint before does not count."""
    before = Driver(consumers("q,r"))
    for queue in ("q", "r"):
        fake.publish(queue, *numbers(10))
    before.rows(20)
    idle_until(before, lambda: not any(state.owned for state in states(fake)))
    stopped(before)
    fake.publish("r", *numbers(10, 20))
    first = Driver(consumers("q,r", adoptState=str(adopt)))
    first.rows(10)
    stopped(first)
    fake.publish("q", *numbers(10, 30))
    again = Driver(consumers("q,r"), first)
    again.restart_batch()
    assert bodies(again.trigger_until_rows())[0] == b"000030"


def test_a_broker_that_answers_late_is_waited_for(
    fake: FakeBroker, consumers: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later than a session counts as certain, and sooner than the broker would give it up."""
    monkeypatch.setattr(policy, "CERTAIN_SECONDS", 0.0)
    fake.publish("q", *numbers(30))
    driver = Driver(consumers(maxMessagesPerTrigger=10))
    assert sorted(bodies(driver.rows(30))) == numbers(30)


def test_a_damaged_file_is_given_up_with_a_state_that_was_lost(
    fake: FakeBroker, consumers: Consumers, caplog: pytest.LogCaptureFixture
) -> None:
    fake.publish("q", *numbers(40))
    driver = planned(consumers, 2)
    fake.forget_states()
    *_, last = files(consumers)
    path = consumers.spool / last
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(StateError, match="there is no state"):
        Driver(consumers(), driver).restart_batch()
    fresh(consumers, adoptState="true", maxMessagesPerTrigger=10).rows(10)
    assert f"the messages of file '{last}' are LOST, as adoptState=true allows" in caplog.text
    assert last in files(consumers), "for whoever wants to look at it"


def test_a_batch_that_was_owned_before_has_its_room_in_the_buffer(
    fake: FakeBroker, consumers: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the spool only until Spark asks for it, and what is on the queue must not take its place."""
    body, buffer = b"x" * 10_000, 500_000
    fake.block_messages = 1
    fake.publish("q", *(body for _ in range(500)))
    first = Driver(consumers(bufferBytes=buffer, maxBytesPerTrigger=buffer))
    while first.trigger(fail=True) is None:
        pass
    stopped(first)
    again = Driver(consumers(bufferBytes=buffer, maxBytesPerTrigger=buffer), first)
    most = 0

    def slow(batch: OwnedBatch, where: spool.Spool) -> QueueBuffer:
        run = running(again.reader)
        assert run is not None
        held = run._receiver.held
        with held.changed:
            owned = held.bytes_of("q") - held.buffers["q"].held_bytes
        assert owned == batch.nbytes, "its room is kept before it is in memory"
        return owned_batches.load(batch, where)

    monkeypatch.setattr(policy, "load", slow)
    replayed = again.restart_batch()
    assert replayed
    rows = len(replayed)
    while rows < 500:
        run = running(again.reader)
        assert run is not None
        most = max(most, run._receiver.held.bytes)
        rows += len(again.trigger() or [])
    assert most <= buffer + 2 * len(body)
