"""Exactly-once on a fake broker and a driver without a JVM: what is owned, offered, finished, refused."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.errors import ConnectionLost
from amqp_spark.datasource import queue_consumer
from amqp_spark.datasource.exactly_once import transactional_state
from amqp_spark.datasource.queue_consumer import QueueConsumer
from amqp_spark.errors import MessageFormatError, OffsetError, SpoolError, StateError
from amqp_spark.spool import spool
from amqp_spark.state.queue import StateQueue
from amqp_spark.state.records import ConsumerState
from tests.spark.driver import Driver, bodies, running, through_json
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
from tests.support.fake_broker import CommitOutcome, FakeBroker

if TYPE_CHECKING:
    from pathlib import Path


def test_a_batch_is_accepted_before_spark_hears_of_it(fake: FakeBroker, consumers: Consumers) -> None:
    fake.publish("q", *numbers(30))
    driver = Driver(consumers())
    while (end := driver.latest()) == driver.start:
        pass
    (state,) = states(fake)
    batch = state.owned[0]
    assert end == {"q": {"epoch": state.epoch, "position": batch.end, "version": 1}}
    assert fake.accepted[: batch.end] == numbers(batch.end)
    assert batch.file in files(consumers)


def test_batch_after_batch_and_nothing_is_left(fake: FakeBroker, consumers: Consumers) -> None:
    fake.publish("q", *numbers(100))
    fake.publish("r", *numbers(100, 100))
    driver = Driver(consumers("q,r", maxMessagesPerTrigger=30))
    assert sorted(bodies(driver.rows(200))) == numbers(200)
    idle_until(driver, lambda: not any(state.owned for state in states(fake)))
    fake.wait(lambda: not files(consumers))
    assert sorted(fake.accepted) == numbers(200)
    assert [state.queue for state in states(fake)] == ["q", "r"]


def test_a_planned_batch_is_the_same_after_a_restart(fake: FakeBroker, consumers: Consumers) -> None:
    fake.publish("q", *numbers(100))
    first = Driver(consumers(maxMessagesPerTrigger=40))
    first.rows(40)
    while (rows := first.trigger(fail=True)) is None:
        pass
    first.reader.stop()
    second = Driver(consumers(maxMessagesPerTrigger=7, numPartitions=5), first)
    assert second.restart_batch() == rows
    assert sorted(bodies([*first.batches[0], *second.rows(60)])) == numbers(100)


def test_a_store_that_is_slow_to_delete_stops_nothing_else(
    fake: FakeBroker, consumers: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, delete = Event(), spool.Spool.delete

    def slow(self: spool.Spool, file: str) -> None:
        assert goes_on.wait(60)
        delete(self, file)

    monkeypatch.setattr(spool.Spool, "delete", slow)
    fake.publish("q", *numbers(100))
    driver = Driver(consumers(maxMessagesPerTrigger=30))
    assert sorted(bodies(driver.rows(100))) == numbers(100)
    idle_until(driver, lambda: not states(fake)[0].owned)
    assert len(files(consumers)) == 4, "all of them are waiting to be deleted"
    goes_on.set()
    stopped(driver)
    assert not files(consumers), "what was begun is done when the query has ended"


# --- what a start says about the state


def test_a_batch_that_was_not_logged_is_offered_again(fake: FakeBroker, consumers: Consumers) -> None:
    fake.publish("q", *numbers(30))
    first = Driver(consumers(maxMessagesPerTrigger=10))
    first.rows(10)
    while (end := first.latest()) == first.start:
        pass
    stopped(first)
    second = Driver(consumers(), first)
    assert second.latest() == end
    assert sorted(bodies([*first.batches[0], *second.rows(20)])) == numbers(30)


def test_a_new_checkpoint_reads_what_is_owned_under_new_offsets(fake: FakeBroker, consumers: Consumers) -> None:
    fake.publish("q", *numbers(30))
    first = planned(consumers)
    second = fresh(consumers, maxMessagesPerTrigger=10)
    rows = second.rows(20)
    assert sorted(bodies([*first.batches[0], *rows])) == numbers(30)
    assert [len(batch) for batch in second.batches] == [10, 10]
    # the batches that were owned follow each other; the earlier query may have planned the second of them ahead
    assert [row[1] for row in rows] in ([*range(10), *range(10)], [*range(20)])
    old = {offset["q"]["epoch"] for offset in first.offsets}
    assert not old & {offset["q"]["epoch"] for offset in second.offsets}
    idle_until(second, lambda: not files(consumers))
    (state,) = states(fake)
    assert state.owned == ()
    assert state.sequence >= 3


def test_the_old_checkpoint_is_refused_once_a_new_one_went_on(fake: FakeBroker, consumers: Consumers) -> None:
    fake.publish("q", *numbers(30))
    first = planned(consumers)
    stopped(planned_again := fresh(consumers, maxMessagesPerTrigger=10))
    second = fresh(consumers, maxMessagesPerTrigger=10)
    second.trigger_until_rows()
    stopped(second)
    assert planned_again.batches == []
    third = Driver(consumers(), first)
    with pytest.raises(OffsetError, match=r"consumerId 'me', queue 'q'.*asks for a batch.*adoptState=true"):
        third.restart_batch()


def test_a_checkpoint_that_was_rolled_back_is_refused(fake: FakeBroker, consumers: Consumers) -> None:
    fake.publish("q", *numbers(50))
    driver = Driver(consumers(maxMessagesPerTrigger=10))
    driver.rows(30)
    driver.trigger_until_rows()
    stopped(driver)
    old = Driver(consumers(), driver)
    old.offsets, old.commits = old.offsets[:1], 1
    with pytest.raises(
        OffsetError, match=r"is at epoch \d+, position 10.*but the state finished .* and owns .*adoptState=true"
    ):
        old.latest()
    stopped(old)
    replayed = Driver(consumers(), driver)
    replayed.offsets, replayed.commits = replayed.offsets[:2], 1
    with pytest.raises(OffsetError, match="asks for a batch that ends at"):
        replayed.restart_batch()


def test_a_checkpoint_that_was_rolled_back_goes_on_with_adopt_state(fake: FakeBroker, consumers: Consumers) -> None:
    fake.publish("q", *numbers(50))
    driver = Driver(consumers(maxMessagesPerTrigger=10))
    driver.rows(30)
    stopped(driver)
    assert states(fake)[0].owned
    for offsets, commits in ((1, 1), (2, 1)):
        old = Driver(consumers(adoptState="true"), driver)
        old.offsets, old.commits = old.offsets[:offsets], commits
        assert old.restart_batch() in (None, [])
        stopped(old)
    old = Driver(consumers(adoptState="true"), driver)
    old.offsets, old.commits = old.offsets[:1], 1
    # What was owned, one batch or one more that was planned ahead, and then the rest of the queue.
    assert bodies(old.rows(30)) == numbers(30, 20)


def test_a_state_that_is_gone_is_no_reason_to_delete_files(fake: FakeBroker, consumers: Consumers) -> None:
    fake.publish("q", *numbers(30))
    first = planned(consumers)
    before = files(consumers)
    fake.forget_states()
    for _ in range(2):
        second = Driver(consumers(), first)
        with pytest.raises(StateError, match=r"there is no state .*[12] batch.*adoptState=true"):
            second.restart_batch()
        stopped(second)
    assert files(consumers) == before
    assert fake.states == {}


def test_with_adopt_state_a_lost_state_is_made_of_the_spool(fake: FakeBroker, consumers: Consumers) -> None:
    fake.publish("q", *numbers(30))
    first = planned(consumers)
    fake.forget_states()
    second = Driver(consumers(adoptState="true"), first)
    rows = second.restart_batch()
    assert rows is not None
    assert len(rows) == 10
    assert sorted(bodies([*first.batches[0], *second.rows(20)])) == numbers(30)
    stopped(second)


def test_a_checkpoint_of_another_guarantee_is_refused(fake: FakeBroker, consumers: Consumers) -> None:
    fake.publish("q", *numbers(20))
    least = Driver(consumers.least(maxMessagesPerTrigger=10))
    least.rows(10)
    stopped(least)
    once = Driver(consumers(), least)
    with pytest.raises(OffsetError, match=r"not written with deliveryGuarantee=exactly-once.*a new checkpoint"):
        once.latest()
    stopped(once)
    fresh(consumers).until(lambda rows: set(numbers(10, 10)) <= set(bodies(rows)))


def test_a_checkpoint_without_state_is_refused(fake: FakeBroker, consumers: Consumers) -> None:
    fake.publish("q", *numbers(30))
    first = Driver(consumers(maxMessagesPerTrigger=10))
    first.rows(30)
    idle_until(first, lambda: not files(consumers))
    stopped(first)
    fake.forget_states()
    second = Driver(consumers(), first)
    with pytest.raises(OffsetError, match=r"its state has no batch.*adoptState=true"):
        second.latest()
    stopped(second)
    fake.publish("q", *numbers(5, 30))
    third = Driver(consumers(adoptState="true"), first)
    assert bodies(third.rows(5)[-5:]) == numbers(5, 30)


def test_a_lost_file_is_told_and_with_adopt_state_given_up(
    fake: FakeBroker, consumers: Consumers, caplog: pytest.LogCaptureFixture
) -> None:
    fake.publish("q", *numbers(30))
    first = planned(consumers)
    lost = consumers.spool / states(fake)[0].owned[0].file
    content = lost.read_bytes()
    lost.unlink()
    second = Driver(consumers(), first)
    with pytest.raises(SpoolError, match=f"{lost.name}, which does not exist") as raised:
        second.restart_batch()
    assert "10 accepted message(s)" in "".join(raised.value.__notes__)
    stopped(second)
    damaged = bytearray(content)
    damaged[len(content) // 2] ^= 1
    lost.write_bytes(damaged)
    third = Driver(consumers(), first)
    with pytest.raises(SpoolError, match="is damaged"):
        third.restart_batch()
    stopped(third)
    lost.write_bytes(content)
    whole = Driver(consumers(), first)
    assert bodies(whole.restart_batch() or []) == numbers(10, 10)
    stopped(whole)
    lost.unlink()
    without = Driver(consumers(adoptState="true"), first)
    assert without.restart_batch() == []
    assert "10 message(s) of the batch with sequence 1 are LOST" in caplog.text
    assert bodies(without.rows(10)) == numbers(10, 20)


def test_files_without_an_owner_are_deleted_at_the_start(fake: FakeBroker, consumers: Consumers) -> None:
    fake.publish("q", *numbers(30))
    planned(consumers)
    owned = files(consumers)
    orphan = consumers.spool / f"{owned[0][:-22]}deadbeef{owned[0][-14:]}"
    orphan.write_bytes(b"rubbish")
    part = consumers.spool / f"{owned[0].split('-')[0]}-abc.part"
    part.write_bytes(b"rubbish")
    second = fresh(consumers)
    second.latest()
    fake.wait(lambda: not orphan.exists() and not part.exists())
    assert set(owned) <= set(files(consumers))


@pytest.mark.parametrize("queues", ["r", "a,q", "q"])
def test_another_list_of_queues_is_refused(fake: FakeBroker, consumers: Consumers, queues: str) -> None:
    fake.queues["a"] = deque()
    first = fresh(consumers, "q" if queues != "q" else "q,r")
    first.latest()
    stopped(first)
    second = fresh(consumers, queues)
    with pytest.raises(StateError, match="another list of queues"):
        second.latest()


def test_another_spool_is_refused_unless_it_is_adopted(fake: FakeBroker, consumers: Consumers, tmp_path: Path) -> None:
    fake.publish("q", *numbers(30))
    first = planned(consumers)
    old, consumers.spool = consumers.spool, tmp_path / "moved"
    second = Driver(consumers(), first)
    with pytest.raises(StateError, match=r"has the spool '.*/spool', and option 'spoolLocation' is '.*/moved'"):
        second.restart_batch()
    stopped(second)
    for name in old.iterdir():
        name.rename(consumers.spool / name.name)
    third = Driver(consumers(adoptState="true"), first)
    assert third.restart_batch()
    assert states(fake)[0].spool == str(consumers.spool)


def test_a_spool_of_another_consumer_is_refused(fake: FakeBroker, consumers: Consumers) -> None:
    fresh(consumers).latest()
    with pytest.raises(SpoolError, match="belongs to consumer 'me', not to 'other'"):
        fresh(consumers, consumerId="other").latest()


# --- locks and reconnects


def test_the_lock_is_waited_for_and_then_it_is_in_use(
    fake: FakeBroker, consumers: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactional_state, "LOCK_SECONDS", -1.5)
    monkeypatch.setattr(queue_consumer, "LOCK_RETRY_SECONDS", 0.02)
    first = fresh(consumers)
    first.latest()
    with pytest.raises(StateError, match=r"AMQP_STATE_IN_USE.*another query has held the lock .*another id"):
        fresh(consumers, heartbeat=1).latest()
    assert first.latest() == first.start
    stopped(first)
    assert fresh(consumers, heartbeat=1).latest()


def test_a_successor_gets_the_lock_as_soon_as_it_is_free(
    fake: FakeBroker, consumers: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_consumer, "LOCK_RETRY_SECONDS", 0.02)
    fake.publish("q", *numbers(30))
    first = Driver(consumers(maxMessagesPerTrigger=10))
    first.rows(20)
    second = Driver(consumers(), first)
    with ThreadPoolExecutor(1) as pool:
        rows = pool.submit(second.rows, 10)
        fake.wait(lambda: fake.connects > 3)
        assert not rows.done()
        first.reader.stop()
        assert bodies(rows.result(30)) == numbers(10, 20)


def test_after_a_reconnect_the_query_goes_on_in_its_epoch(fake: FakeBroker, consumers: Consumers) -> None:
    fake.publish("q", *numbers(60))
    driver = Driver(consumers(maxMessagesPerTrigger=10))
    driver.rows(20)
    fake.cut()
    rows = driver.rows(60)
    assert sorted(bodies(rows)) == numbers(60)
    assert len({offset["q"]["epoch"] for offset in driver.offsets}) == 1
    assert sorted(fake.accepted) == numbers(60)


@pytest.mark.parametrize("commits", [True, False])
def test_a_transaction_whose_answer_never_came(fake: FakeBroker, consumers: Consumers, commits: bool) -> None:
    fake.publish("q", *numbers(60))
    driver = Driver(consumers(maxMessagesPerTrigger=10))
    driver.rows(10)
    fake.commit_outcomes.append(CommitOutcome(commits, ConnectionLost("cut in the middle")))
    rows = driver.rows(60)
    assert sorted(bodies(rows)) == numbers(60)
    assert not fake.commit_outcomes
    assert sorted(fake.accepted) == numbers(60)
    idle_until(driver, lambda: not files(consumers))
    assert states(fake)[0].owned == ()


def test_a_zombie_stops_for_ever(fake: FakeBroker, consumers: Consumers, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.publish("q", *numbers(60))
    zombie = Driver(consumers(maxMessagesPerTrigger=10))
    zombie.rows(10)
    may_return = slow_to_return(monkeypatch)
    fake.cut()
    successor = Driver(consumers(), zombie)
    rows = successor.rows(50)
    stopped(successor)
    may_return.set()
    with pytest.raises(StateError, match="another query has taken over the state"):
        zombie.until(lambda rows: False)
    with pytest.raises(StateError, match="another query has taken over the state"):
        zombie.reader.partitions(zombie.initial, zombie.offsets[-1])
    assert sorted(bodies(rows)) == numbers(50, 10)
    assert sorted(fake.accepted) == numbers(60)


def test_a_state_that_is_deleted_while_the_query_runs(fake: FakeBroker, consumers: Consumers) -> None:
    fake.publish("q", *numbers(100))
    driver = Driver(consumers(maxMessagesPerTrigger=10))
    driver.rows(10)
    fake.forget_states()
    owned = len(fake.accepted)  # what is planned ahead may be among it
    with pytest.raises(StateError, match="lost its message while it was in use"):
        driver.until(lambda rows: False)
    stopped(driver)
    assert sorted(fake.accepted) == numbers(owned)
    assert owned < 100
    assert files(consumers), "what could not be finished is still there"


def test_a_broker_that_stands_still_for_longer_than_the_state_is_waited_for(
    fake: FakeBroker, consumers: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends the state message behind the answer to what it is asked next."""
    fake.publish("q", *numbers(10))
    driver = Driver(consumers(maxMessagesPerTrigger=10))
    driver.rows(10)
    idle_until(driver, lambda: not any(state.owned for state in states(fake)))
    receive, stands_still = StateQueue._receive, [True]

    def received(self: StateQueue, timeout: float) -> bool:
        return not stands_still and receive(self, timeout)

    def commanded(name: str) -> None:
        if name == "sync":
            stands_still.clear()

    monkeypatch.setattr(StateQueue, "_receive", received)
    fake.on_command = commanded
    fake.publish("q", *numbers(10, 10))
    assert sorted(bodies(driver.trigger_until_rows())) == numbers(10, 10)


def test_the_broker_has_forgotten_the_state_at_a_reconnect(fake: FakeBroker, consumers: Consumers) -> None:
    fake.publish("q", *numbers(10))
    driver = Driver(consumers())
    driver.rows(10)
    fake.forget_states()
    fake.cut()
    with pytest.raises(StateError, match="was deleted while the query ran"):
        driver.until(lambda rows: False)


def test_a_spool_that_is_full_loses_nothing(
    fake: FakeBroker, consumers: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.publish("r", *numbers(10))
    driver = Driver(consumers("q,r"))
    driver.rows(10)
    fake.publish("q", *numbers(10, 10))
    fake.publish("r", *numbers(10, 20))
    write = spool.Spool.write

    def full(self: spool.Spool, **arguments: Any) -> spool.Written:
        if self._queue == "r":
            raise SpoolError("no space left")
        return write(self, **arguments)

    with monkeypatch.context() as patched:
        patched.setattr(spool.Spool, "write", full)
        with pytest.raises(SpoolError, match="no space left"):
            driver.until(lambda rows: False)
    stopped(driver)
    assert files(consumers) == [batch.file for state in states(fake) for batch in state.owned]
    missing = 30 - sum(len(batch) for batch in driver.batches)
    rows = Driver(consumers("q,r"), driver).rows(missing)
    assert sorted(bodies([row for batch in driver.batches for row in batch] + rows)) == numbers(30)


# --- planning ahead


def test_the_next_batch_is_owned_while_spark_works_on_one(fake: FakeBroker, consumers: Consumers) -> None:
    fake.publish("q", *numbers(40))
    driver = Driver(consumers(maxMessagesPerTrigger=10))
    driver.trigger_until_rows()
    fake.wait(lambda: len(states(fake)[0].owned) == 2)
    fake.wait(lambda: fake.held() == 20)
    assert len(states(fake)[0].owned) == 2  # one, and no more
    driver.rows(40)
    assert [row[1] for batch in driver.batches for row in batch] == list(range(40))


def test_a_small_rest_is_not_planned_ahead(fake: FakeBroker, consumers: Consumers) -> None:
    fake.publish("q", *numbers(15))
    driver = Driver(consumers(maxMessagesPerTrigger=10))
    assert len(driver.rows(10)) == 10
    assert len(states(fake)[0].owned) == 1
    assert bodies(driver.rows(15)) == numbers(15)


def test_queues_that_were_planned_ahead_come_with_their_own_batch(fake: FakeBroker, consumers: Consumers) -> None:
    fake.publish("q", *numbers(40))
    driver = Driver(consumers("q,r", maxMessagesPerTrigger=10))
    driver.trigger_until_rows()
    fake.wait(lambda: len(states(fake)[0].owned) == 2)
    fake.publish("r", *numbers(40, 40))
    rows = driver.rows(80)
    assert sorted(bodies(rows)) == numbers(80)
    assert max(len(batch) for batch in driver.batches) == 10


def test_a_commit_of_many_queues_wakes_each_consumer_once(
    fake: FakeBroker, consumers: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them for each queue took half a minute with 300 queues."""
    queues = [f"q{number}" for number in range(20)]
    for queue in queues:
        fake.queues[queue] = deque()
        fake.publish(queue, b"body")
    driver = Driver(consumers(",".join(queues), minMessagesPerTrigger=20))
    assert len(driver.trigger_until_rows()) == 20
    woken: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(QueueConsumer, "wake", lambda consumer: woken.append(consumer.queue))
        driver.reader.commit(through_json(driver.start))
    assert sorted(woken) == sorted(queues)


def test_a_spool_that_is_full_ahead_is_told_when_spark_asks(
    fake: FakeBroker, consumers: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.publish("q", *numbers(40))
    driver = Driver(consumers(maxMessagesPerTrigger=10))
    tried = Event()

    def full(self: spool.Spool, **arguments: Any) -> spool.Written:
        tried.set()
        raise SpoolError("no space left")

    driver.latest()
    with monkeypatch.context() as patched:
        patched.setattr(spool.Spool, "write", full)
        with pytest.raises(SpoolError, match="no space left"):
            driver.until(lambda rows: False)
    assert tried.is_set()


def test_a_batch_waits_for_the_least_of_messages_and_is_replayed_however_small(
    fake: FakeBroker, consumers: Consumers
) -> None:
    fake.publish("q", *numbers(9))
    driver = Driver(consumers(minMessagesPerTrigger=10))
    assert driver.trigger() is None
    run = running(driver.reader)
    assert run is not None
    fake.wait(lambda: run._receiver._received() == 9)
    assert driver.trigger() is None
    assert files(consumers) == []
    fake.publish("q", *numbers(1, 9))
    while driver.trigger(fail=True) is None:
        pass
    stopped(driver)
    again = Driver(consumers(minMessagesPerTrigger=1000), driver)
    assert bodies(again.restart_batch() or []) == numbers(10)


def test_a_batch_of_exactly_once_does_not_wait_for_more_than_there_is_room_for(
    fake: FakeBroker, consumers: Consumers
) -> None:
    sent = [b"%06d" % number + b"x" * 1000 for number in range(200)]
    fake.publish("q", *sent)
    driver = Driver(consumers(minMessagesPerTrigger=1000, bufferBytes="64k"))
    assert bodies(driver.rows(120))[:120] == sent[:120]


def set_aside(fake: FakeBroker, *indexes: int) -> None:
    """As the command ``transactions --skip`` does."""
    ((name, body),) = fake.states.items()
    state = ConsumerState.load(body)
    owned = (replace(state.owned[0], skipped=indexes), *state.owned[1:])
    fake.put_state(name, replace(state, owned=owned).dump())


@pytest.mark.parametrize("transfer", ["inline", "pull"])
def test_a_message_that_was_set_aside_is_left_out_of_every_replay(
    fake: FakeBroker, consumers: Consumers, transfer: str
) -> None:
    sent = [*numbers(5), b"bad", *numbers(5, 5)]
    fake.publish("q", *sent)
    first = Driver(consumers(minMessagesPerTrigger=11, transfer=transfer))
    with pytest.raises(MessageFormatError) as raised:
        first.until(lambda _: False)
    assert raised.value.position == 5
    epoch = states(fake)[0].epoch
    assert f"URL --consumer-id me --queue q --skip {epoch}:5 --to FILE" in str(raised.value)
    assert "REJECT" not in str(raised.value)
    stopped(first)
    set_aside(fake, 5)
    for _ in range(2):  # however often
        again = Driver(consumers(transfer=transfer), first)
        assert again.restart_batch() == [("q", n, body) for n, body in enumerate(sent) if n != 5]
        again.commits -= 1
        stopped(again)
    anew = fresh(consumers)  # and under other numbers
    assert bodies(anew.trigger_until_rows()) == numbers(10)
    idle_until(anew, lambda: not states(fake)[0].owned)
    fake.wait(lambda: not files(consumers))
