"""Exactly-once on a fake broker: options that were changed or shared, places that fail for a moment, bad timing."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from amqp_spark.datasource.exactly_once import waiting
from amqp_spark.datasource.exactly_once.lookahead import Lookahead
from amqp_spark.datasource.partitions import PlannedRanges
from amqp_spark.datasource.receive_buffer import ReceiveBuffer
from amqp_spark.errors import OffsetError, SpoolError, StateError, TransferError
from amqp_spark.spool import directories, spool
from tests.spark.driver import Driver, bodies, running
from tests.spark.reader_support import Readers, numbers
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
from tests.support.fake_broker import FakeBroker

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Iterator
    from pathlib import Path

    from amqp_spark.arrow.decode import Chunk


@pytest.fixture
def elsewhere(consumers: Consumers) -> Iterator[Consumers]:
    """The same consumer with the same spool, on another broker."""
    others = Consumers(FakeBroker("q"))
    others.spool = consumers.spool
    yield others
    others.stop()


def test_a_spool_is_not_shared_by_the_consumers_of_two_brokers(
    fake: FakeBroker, consumers: Consumers, elsewhere: Consumers, caplog: pytest.LogCaptureFixture
) -> None:
    idle = fresh(elsewhere)
    idle.latest()
    stopped(idle)
    fake.publish("q", *numbers(30))
    first = planned(consumers)
    owned = [batch.file for state in states(fake) for batch in state.owned]
    assert owned, "at least one; a further one may have been planned ahead"
    again = Driver(elsewhere(), idle)
    with pytest.raises(StateError, match=rf"{len(owned)} batch\(es\) of another state of this consumer.*its own"):
        again.latest()
    stopped(again)
    assert files(consumers) == owned
    adopted = Driver(elsewhere(adoptState="true"), idle)
    adopted.latest()
    stopped(adopted)
    assert f"{len(owned)} batch(es) of another state stay in the spool" in caplog.text
    assert files(consumers) == owned
    second = Driver(consumers(), first)
    assert bodies(second.restart_batch() or []) == numbers(10, 10)
    assert sorted(bodies([*first.batches[0], *second.batches[0], *second.rows(20)[10:]])) == numbers(30)
    idle_until(second, lambda: not files(consumers))


def test_a_standby_broker_whose_state_lags_behind_costs_no_batch(
    fake: FakeBroker, consumers: Consumers, elsewhere: Consumers
) -> None:
    """The state there does not fit the checkpoint, and is refused: the files of the first broker must stay."""
    fake.publish("q", *numbers(10))
    first = Driver(consumers(maxMessagesPerTrigger=10))
    first.rows(10)
    idle_until(first, lambda: not any(state.owned for state in states(fake)))
    for queue, body in fake.states.items():
        elsewhere.broker.put_state(queue, body)
    fake.publish("q", *numbers(10, 10))
    while first.trigger(fail=True) is None:
        pass
    stopped(first)
    owned = files(consumers)
    standby = Driver(elsewhere(), first)
    with pytest.raises(OffsetError, match="AMQP_CHECKPOINT_MISMATCH"):
        standby.restart_batch()
    stopped(standby)
    assert files(consumers) == owned
    again = Driver(consumers(), first)
    assert bodies(again.restart_batch() or []) == numbers(10, 10)


def test_a_file_that_cannot_be_read_at_the_moment_is_not_given_up(
    fake: FakeBroker, consumers: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.publish("q", *numbers(30))
    first = planned(consumers)
    owned = states(fake)[0].owned[0].file
    real = directories.LocalDirectory.open

    def failing(self: directories.LocalDirectory, name: str) -> contextlib.AbstractContextManager[Any]:
        if name == owned:
            raise OSError(errno.EIO, "Input/output error")
        return real(self, name)

    with monkeypatch.context() as patched:
        patched.setattr(directories.LocalDirectory, "open", failing)
        second = Driver(consumers(adoptState="true"), first)
        with pytest.raises(SpoolError, match="Input/output error"):
            second.restart_batch()
        stopped(second)
    assert owned in files(consumers)
    third = Driver(consumers(adoptState="true"), first)
    assert bodies(third.restart_batch() or []) == numbers(10, 10)


def test_a_damaged_file_that_was_given_up_stays_for_one_start(fake: FakeBroker, consumers: Consumers) -> None:
    fake.publish("q", *numbers(30))
    first = planned(consumers)
    owned = states(fake)[0].owned[0].file
    (consumers.spool / owned).write_bytes(b"AMQPSPOL")
    second = Driver(consumers(adoptState="true"), first)
    assert second.restart_batch() == []
    assert owned in files(consumers)
    second.latest()
    stopped(second)
    third = Driver(consumers(), second)
    third.latest()
    assert owned not in files(consumers)


def test_a_spool_that_is_moved_without_its_files_is_not_given_up(
    fake: FakeBroker, consumers: Consumers, tmp_path: Path
) -> None:
    fake.publish("q", *numbers(30))
    first = planned(consumers)
    old, consumers.spool = consumers.spool, tmp_path / "moved"
    second = Driver(consumers(adoptState="true"), first)
    with pytest.raises(SpoolError, match=r"AMQP_SPOOL_BATCH_LOST.*which does not exist") as raised:
        second.restart_batch()
    assert f"which was in {str(old)!r}: move all files from there" in "".join(raised.value.__notes__)
    stopped(second)
    for name in old.iterdir():
        name.rename(consumers.spool / name.name)
    third = Driver(consumers(adoptState="true"), first)
    assert bodies(third.restart_batch() or []) == numbers(10, 10)


@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once"])
def test_another_guarantee_does_not_go_on_with_the_checkpoint(
    fake: FakeBroker, consumers: Consumers, guarantee: str
) -> None:
    fake.publish("q", *numbers(30))
    first = planned(consumers)
    others = Readers(fake)
    second = Driver(others(deliveryGuarantee=guarantee), first)
    with pytest.raises(OffsetError, match=r"AMQP_CHECKPOINT_OF_EXACTLY_ONCE.*deliveryGuarantee=exactly-once"):
        second.restart_batch()
    with pytest.raises(OffsetError, match="Use that guarantee until no batch is owned"):
        second.latest()
    others.stop()
    third = Driver(consumers(), first)
    assert bodies(third.restart_batch() or []) == numbers(10, 10)


def test_available_now_does_not_end_because_a_batch_was_not_owned(
    fake: FakeBroker, consumers: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.publish("q", *numbers(60))
    write = spool.Spool.write
    cuts: list[int] = []

    def reconnected(self: spool.Spool, **arguments: Any) -> spool.Written:
        written = write(self, **arguments)
        if not cuts:  # the new session has what waits again before this batch is to be owned
            cuts.append(fake.connects)
            fake.cut()
            fake.wait(lambda: fake.connects > cuts[0] and fake.held() > 0)
        return written

    monkeypatch.setattr(spool.Spool, "write", reconnected)
    driver = Driver(consumers(maxMessagesPerTrigger=10), available_now=True)
    while driver.trigger() is not None:
        pass
    assert sorted(bodies([row for batch in driver.batches for row in batch])) == numbers(60)
    assert cuts


@pytest.mark.parametrize("owned", [True, False])
def test_adopt_state_is_needed_for_one_start_only(fake: FakeBroker, consumers: Consumers, owned: bool) -> None:
    fake.publish("q", *numbers(30))
    first = Driver(consumers(maxMessagesPerTrigger=10))
    first.rows(20)
    while owned and first.trigger(fail=True) is None:
        pass
    stopped(first)
    first.offsets, first.commits = first.offsets[:1], 1
    second = Driver(consumers(adoptState="true", maxMessagesPerTrigger=10), first)
    while second.trigger(fail=True) is None:  # it ends before Spark has committed its first batch
        pass
    stopped(second)
    third = Driver(consumers(maxMessagesPerTrigger=10), second)
    assert third.restart_batch()


Succeeded = Callable[[Driver, int], None]


@pytest.fixture
def succeeded(fake: FakeBroker, consumers: Consumers, monkeypatch: pytest.MonkeyPatch) -> Succeeded:
    """The connection of a reader is cut, and a query takes its state over before it can connect again."""
    may_return = slow_to_return(monkeypatch)

    def succeed(checkpoint: Driver, count: int) -> None:
        fake.cut()
        successor = Driver(consumers(), checkpoint)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(successor.rows, count).result(60)
        stopped(successor)
        may_return.set()

    return succeed


def test_a_reader_that_was_succeeded_serves_no_pulls(
    fake: FakeBroker, consumers: Consumers, succeeded: Succeeded
) -> None:
    fake.publish("q", *numbers(30))
    old = Driver(consumers(maxMessagesPerTrigger=10, transfer="pull"))
    while old.trigger(fail=True) is None:
        pass
    succeeded(Driver(consumers()), 30)
    with pytest.raises(TransferError, match="another query has taken over the state"):
        old.read(old.last_partitions)


def test_a_pull_that_a_successor_overtakes_does_not_end_well(
    fake: FakeBroker, consumers: Consumers, succeeded: Succeeded, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.publish("q", *numbers(30))
    old = Driver(consumers(maxMessagesPerTrigger=10, transfer="pull"))
    while old.trigger(fail=True) is None:
        pass
    chunks = PlannedRanges.chunks
    overtaken: list[int] = []

    def suspended(self: Any, *what: Any) -> list[Chunk]:
        found: list[Chunk] = chunks(self, *what)
        if not overtaken:
            overtaken.append(1)
            succeeded(Driver(consumers()), 30)
        return found

    monkeypatch.setattr(PlannedRanges, "chunks", suspended)
    with pytest.raises(TransferError, match="another query has taken over the state"):
        old.read(old.last_partitions)


def test_a_pull_during_which_the_reader_stops_does_not_end_well(
    fake: FakeBroker, consumers: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is free once the connection is closed, so that a successor may have read the batch before the task."""
    fake.publish("q", *numbers(30))
    driver = Driver(consumers(maxMessagesPerTrigger=10, transfer="pull"))
    while driver.trigger(fail=True) is None:
        pass
    held = running(driver.reader)._receiver.held  # type: ignore[union-attr]
    chunks = PlannedRanges.chunks

    def stopped(self: Any, *what: Any) -> list[Chunk]:
        found: list[Chunk] = chunks(self, *what)
        with held.changed:
            held.stopping = True
            held.changed.notify_all()
        return found

    monkeypatch.setattr(PlannedRanges, "chunks", stopped)
    with pytest.raises(TransferError, match="the query is being stopped"):
        driver.read(driver.last_partitions)


def test_a_reader_that_was_succeeded_while_it_wrote_does_not_blame_the_place(
    fake: FakeBroker, consumers: Consumers, succeeded: Succeeded, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.publish("q", *numbers(30))
    old = Driver(consumers(maxMessagesPerTrigger=20))
    old.rows(20)
    write = directories._write_synced
    overtaken: list[int] = []

    def suspended(path: Path, pieces: Any) -> None:
        write(path, pieces)
        if not overtaken and threading.current_thread() is threading.main_thread():
            overtaken.append(1)
            succeeded(old, 10)

    monkeypatch.setattr(directories, "_write_synced", suspended)
    with pytest.raises(StateError, match="another query has taken over the state"):
        old.until(lambda rows: False)
    assert overtaken


def test_what_a_batch_leaves_of_the_budget_is_told_to_all_queues(fake: FakeBroker, consumers: Consumers) -> None:
    fake.publish("q", *[bytes(3000)] * 40)
    driver = Driver(consumers("q,r", maxBytesPerTrigger=40_000, bufferBytes=40_000))
    while driver.trigger(fail=True) is None:
        pass
    wakes = [each._wakes for each in running(driver.reader)._receiver.consumers]  # type: ignore[union-attr]
    driver.commits += 1
    driver.reader.commit(driver.offsets[-1])
    assert all(
        each._wakes > before
        for each, before in zip(running(driver.reader)._receiver.consumers, wakes, strict=True)  # type: ignore[union-attr]
    )


def test_a_wish_for_the_next_batch_is_kept_while_one_is_being_planned() -> None:
    held = ReceiveBuffer(("q",), 1 << 20, time.monotonic)
    ahead = Lookahead(held)
    planned_at: list[int] = []
    done = threading.Event()

    def second() -> None:
        planned_at.append(2)
        done.set()

    def first() -> None:
        planned_at.append(1)
        ahead.stop()  # Spark's next call comes, takes this batch, and wishes for another one
        ahead.start(lambda: True, second, 0)

    ahead.start(lambda: True, first, 0)
    assert done.wait(20)
    assert planned_at == [1, 2]
    with held.changed:
        held.stopping = True
        held.changed.notify_all()
    ahead.join(20)


def test_a_slow_spool_does_not_cost_the_session(
    fake: FakeBroker, consumers: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "KEEP_ALIVE_SECONDS", 0.01)
    real = spool.Spool.open

    def slow(self: spool.Spool) -> None:
        fake.wait(lambda: fake.syncs > 2)  # the broker hears of this reader while it waits for its spool
        real(self)

    monkeypatch.setattr(spool.Spool, "open", slow)
    fresh(consumers).latest()
    assert fake.connects == 1
