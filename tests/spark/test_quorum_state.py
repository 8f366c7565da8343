"""The state of a quorum queue, with a scripted session: looks whether all has come, and other processes."""

from __future__ import annotations

import re
from array import array
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from amqp_core.api import Identity, Ready, Route
from amqp_core.blocks import Block
from amqp_core.errors import ConnectionLost
from amqp_spark.datasource.consumer_setup import DYING_SECONDS
from amqp_spark.datasource.exactly_once import quorum_state
from amqp_spark.datasource.exactly_once.quorum_state import QuorumState
from amqp_spark.datasource.exactly_once.recognition import Verdict
from amqp_spark.datasource.exactly_once.recovery import Consumer, recover
from amqp_spark.datasource.exactly_once.sole_consumer import PATIENCE_SECONDS
from amqp_spark.errors import ConsumerStalled, StateError
from amqp_spark.spool.spool import Spool
from amqp_spark.state.records import ConsumerState, OwnedBatch
from tests.support.fake_broker import FakeBlock

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from amqp_core.api import Target

LIMIT = 20
"""Of deliveries, on quorum queues of RabbitMQ 4 that are declared without one."""
STEP_S = 0.025


class Queue:
    """A queue whose first message was returned and does not come, and a state with a batch of two messages in doubt, of
    which so many have come."""

    def __init__(self, directory: Path, come: int = 1, *, heartbeat: int = 5) -> None:
        self.now = 1000.0
        self.heartbeat = heartbeat
        self.looks: list[float] = []
        self.consumers = 1
        self.again: list[Identity] = []
        """What a block has, all of it marked as redelivered."""
        self.asked, self.is_lost = 0, False
        self.exchanges: set[str] = set()
        self.state = self.process(directory)
        self.state._begun_at = self.now
        self.state._sole.restart(self.now)
        batch = [Identity(bytes([number] * 16), 0, named=False) for number in range(2)]
        self.state._recognition.add("file", batch)
        for number, identity in enumerate(batch[:come]):
            assert self.state._recognition.withholds(identity._replace(deliveries=1), number)

    def process(self, directory: Path, *, adopt: bool = False) -> QuorumState:
        """The state as a process has it."""
        consumer = Consumer(
            consumer_id="me", queue="q", index=0, count=1, spool=str(directory), adopt=adopt, heartbeat=self.heartbeat
        )
        spool = Spool(str(directory), consumer_id="me", queue="q")
        spool.protocol = "0-9-1"
        spool.open()
        state = QuorumState(consumer, spool, lambda: self.now, lambda _count: None)
        state.begin(cast("Any", self))
        return state

    def query_queue(self, _queue: str) -> Any:
        return SimpleNamespace(subscriber_count=self.consumers)

    def pass_barrier(self, _queue: str) -> Ready:
        self.looks.append(self.now)
        return Ready(redelivered=True, identity=None)

    def sync(self) -> None:
        self.asked += 1
        if self.is_lost:
            raise ConnectionLost("the broker has given it up")

    def declare_exchange(self, exchange: str, _kind: str, *, durable: bool) -> None:
        assert durable
        self.exchanges.add(exchange)

    def query_routes(self, targets: Sequence[Target]) -> Any:
        answers = [Route(exists=exchange in self.exchanges) for exchange, _ in targets]
        return SimpleNamespace(answers=lambda: answers)

    def redelivered(self, _block: object) -> list[int]:
        return list(range(len(self.again)))

    def identities(self, _block: object, indices: list[int]) -> list[Identity | None]:
        return [self.again[index] if index < len(self.again) else None for index in indices]

    def accept(self, _ranges: object, *, silence_timeout_s: float) -> None:
        assert silence_timeout_s > 0

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.state.resolve()
            self.now += STEP_S


def test_looks_in_vain_do_not_use_up_the_deliveries_of_a_message(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    queue.wait(PATIENCE_SECONDS - 1)
    assert quorum_state.MOST_IN_VAIN < len(queue.looks) < LIMIT / 2


def test_a_message_that_comes_is_a_reason_to_look_again_at_once(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    queue.wait(10)
    assert len(queue.looks) == quorum_state.MOST_IN_VAIN
    queue.state.sift([FakeBlock(bytes(10), [10], 7, 10)])
    queue.wait(1.5)
    assert len(queue.looks) > quorum_state.MOST_IN_VAIN


def test_a_batch_that_has_come_as_a_whole_is_decided_on_when_no_more_can_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session before had more messages: what is left of them is first in the queue, and this session is full."""
    queue = Queue(tmp_path, come=2)
    verdicts: list[Verdict] = []
    monkeypatch.setattr(queue.state, "_carry_out", verdicts.append)
    queue.wait(5)
    assert len(queue.looks) == quorum_state.MOST_IN_VAIN
    assert verdicts[0] == Verdict([0, 1], [], ["file"], ["file"])


def test_a_batch_that_comes_late_may_come_in_several_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker gives a lost session up after three heartbeats, and returns only then what that has held."""
    queue = Queue(tmp_path, come=0)
    verdicts: list[Verdict] = []
    monkeypatch.setattr(queue.state, "_carry_out", verdicts.append)
    queue.wait(PATIENCE_SECONDS + 10)
    for number in range(2):
        assert not verdicts
        queue.again = [Identity(bytes([number] * 16), 1, named=False)]
        queue.state.sift([Block(bytes(10), array("I", [10]), 7 + number)])
        queue.wait(1)
    queue.wait(5)
    assert verdicts[0] == Verdict([7, 8], [], ["file"], ["file"])


def test_a_lost_session_is_counted_for_as_long_as_the_broker_takes_it_for_a_live_one(tmp_path: Path) -> None:
    """Three heartbeats: it is no other consumer, for which the query would end."""
    queue = Queue(tmp_path, come=0, heartbeat=120)
    queue.consumers = 2
    queue.wait(3 * 120)
    queue.wait(DYING_SECONDS - 1)
    with pytest.raises(StateError, match="AMQP_QUEUE_SHARED"):
        queue.wait(3)


def test_the_limit_of_a_session_in_doubt_has_little_room_where_messages_are_large(tmp_path: Path) -> None:
    state = Queue(tmp_path).state
    assert state.most_unsettled(None) is None
    assert [state.most_unsettled(most) for most in (1, 500, 5000)] == [3, 502, 5000]


def test_a_process_that_was_replaced_notices_it_although_the_states_are_equal(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    body = ConsumerState("me", "q", str(tmp_path), epoch=7, instance="ab").dump()
    ours, other = queue.process(tmp_path), queue.process(tmp_path)
    ours.create(body)
    ours._has_begun = True
    assert ours.take() == body
    assert other.take() == body
    other._write(body, {})
    with pytest.raises(StateError, match="AMQP_CONSUMER_REPLACED"):
        ours.take()


def test_a_process_that_has_lost_its_lock_begins_no_epoch(tmp_path: Path) -> None:
    """It was suspended between the lock and the first file: a successor may work already."""
    queue = Queue(tmp_path)
    ours, late = queue.process(tmp_path), queue.process(tmp_path)
    state = ConsumerState("me", "q", str(tmp_path), epoch=7, instance="ab")
    ours.create(state.dump())
    assert late.take() == state.dump()
    queue.is_lost = True
    with pytest.raises(ConnectionLost):
        late._write(replace(state, epoch=8).dump(), {})
    assert queue.asked == 2, "before each first file"
    found = ours._files.latest()
    assert found is not None
    assert (found.epoch, found.serial) == (7, 1)


@pytest.mark.parametrize("is_checked", [True, False], ids=["behind the check of its file", "before"])
def test_a_start_reads_the_state_again_that_a_suspended_process_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_checked: bool
) -> None:
    """That has lost its lock, and drops a finished batch: with its old state the start would lack the file."""
    queue = Queue(tmp_path)
    client: Any = queue
    client.capabilities = SimpleNamespace(counts_deliveries=True, counts_held_messages=False)
    suspended, starts = queue.process(tmp_path), queue.process(tmp_path)
    state = ConsumerState("me", "q", str(tmp_path), epoch=7, instance="ab")
    spool = starts._spool
    spool.instance = "ab"
    written = spool.write(epoch=7, sequence=0, begin=0, parts=[memoryview(b"a")], ends=[1])
    batch = spool.batch(written.file)
    suspended.create(replace(state, sequence=1, owned=(batch,)).dump())

    def dropped(_batch: OwnedBatch, **_: bool) -> None:
        monkeypatch.undo()
        suspended.swap(replace(state, sequence=1, finished=batch.mark).dump())
        spool.delete(written.file)
        if not is_checked:
            spool.check(batch)

    monkeypatch.setattr(spool, "check", dropped)
    with pytest.raises(ConsumerStalled, match="AMQP_CONSUMER_STATE_CHANGED"):
        recover(starts._consumer, client, starts, spool)
    found, _ = recover(starts._consumer, client, starts, spool)
    assert found == replace(state, epoch=8, sequence=1, finished=batch.mark)


def test_the_state_of_another_broker_is_not_taken(tmp_path: Path) -> None:
    body = ConsumerState("me", "q", str(tmp_path), epoch=7, instance="ab").dump()
    one, other = Queue(tmp_path), Queue(tmp_path)
    one.process(tmp_path).create(body)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(StateError, match="AMQP_CONSUMER_OTHER_BROKER"):
        other.process(tmp_path).take()
    assert sorted(tmp_path.iterdir()) == before
    assert one.process(tmp_path).take() == body


def test_a_state_is_adopted_from_another_broker_which_cannot_take_it_back(tmp_path: Path) -> None:
    state = ConsumerState("me", "q", str(tmp_path), epoch=7, instance="ab")
    one, other = Queue(tmp_path), Queue(tmp_path)
    one.process(tmp_path).create(state.dump())
    adopts = other.process(tmp_path, adopt=True)
    assert adopts.take() == state.dump()
    adopts.swap(replace(state, epoch=8).dump())
    with pytest.raises(StateError, match="AMQP_CONSUMER_OTHER_BROKER"):
        one.process(tmp_path).take()
    assert other.process(tmp_path).take() == replace(state, epoch=8).dump()


def test_a_query_does_not_go_on_at_another_broker(tmp_path: Path) -> None:
    """Not even with adoptState=true: what the first broker has not got acknowledged is there."""
    body = ConsumerState("me", "q", str(tmp_path), epoch=7, instance="ab").dump()
    one, other = Queue(tmp_path), Queue(tmp_path)
    state = one.process(tmp_path, adopt=True)
    state.create(body)
    state.enter()
    state.begin(cast("Any", other))
    with pytest.raises(StateError, match="AMQP_CONSUMER_OTHER_BROKER"):
        state.take()


def test_a_state_of_an_earlier_release_gets_an_anchor(tmp_path: Path) -> None:
    state = ConsumerState("me", "q", str(tmp_path), epoch=7, instance="ab")
    one, other = Queue(tmp_path), Queue(tmp_path)
    one.process(tmp_path).create(state.dump())
    for path in tmp_path.glob("amqp-spark.state.*"):
        path.write_bytes(re.sub(rb',"anchor":"[^"]+"', b"", path.read_bytes()))
    one.exchanges.clear()
    later = one.process(tmp_path)
    assert later.take() == state.dump()
    later.swap(replace(state, epoch=8).dump())
    with pytest.raises(StateError, match="AMQP_CONSUMER_OTHER_BROKER"):
        other.process(tmp_path).take()


def test_a_start_that_ends_behind_the_anchor_is_followed_by_another_one(tmp_path: Path) -> None:
    state = ConsumerState("me", "q", str(tmp_path), epoch=7, instance="ab")
    queue = Queue(tmp_path)
    queue.is_lost = True
    with pytest.raises(ConnectionLost):
        queue.process(tmp_path).create(state.dump())
    assert queue.exchanges
    queue.is_lost = False
    later = queue.process(tmp_path)
    assert later.take() is None
    later.create(state.dump())
    assert queue.process(tmp_path).take() == state.dump()


def test_a_process_that_was_replaced_acknowledges_nothing_more(tmp_path: Path) -> None:
    """Its lock no longer counts: a broker that was partitioned has two, or a user has adopted the state elsewhere."""
    state = ConsumerState("me", "q", str(tmp_path), epoch=7, instance="ab")
    one, other = Queue(tmp_path), Queue(tmp_path)
    ours = one.process(tmp_path)
    ours.create(state.dump())
    adopts = other.process(tmp_path, adopt=True)
    adopts.take()
    adopts.swap(replace(state, epoch=8).dump())
    with pytest.raises(StateError, match="AMQP_CONSUMER_REPLACED"):
        ours.swap(replace(state, sequence=1).dump())


def test_what_refuses_a_start_names_no_command_that_rabbitmq_does_not_have(tmp_path: Path) -> None:
    """`--forget` deletes what a broker keeps, and this broker keeps nothing."""
    queue = Queue(tmp_path)
    client: Any = queue
    client.capabilities = SimpleNamespace(counts_deliveries=True)
    queue.process(tmp_path).create(ConsumerState("me", "before", str(tmp_path), epoch=7, instance="ab").dump())
    spool = Spool(str(tmp_path), consumer_id="me", queue="q")
    spool.protocol = "0-9-1"
    state = queue.process(tmp_path)
    with pytest.raises(StateError, match="AMQP_CONSUMER_QUEUES_CHANGED") as changed:
        recover(state._consumer, client, state, spool)
    assert "another consumerId with another spoolLocation begins anew" in str(changed.value)
    newest = max(tmp_path.glob("amqp-spark.state.*"))
    newest.write_bytes(newest.read_bytes().replace(b'"version":1', b'"version":9'))
    with pytest.raises(StateError, match=r"AMQP_STATE_FILE_UNREADABLE.*it has version 9") as unreadable:
        recover(state._consumer, client, state, spool)
    assert str(tmp_path) in str(unreadable.value)
    assert "--forget" not in f"{changed.value}{unreadable.value}"


def test_a_spool_with_other_parameters_is_not_said_to_be_the_same(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    client: Any = queue
    client.capabilities = SimpleNamespace(counts_deliveries=True)
    place = "s3://bucket/spool?endpoint_override="
    queue.process(tmp_path).create(ConsumerState("me", "q", f"{place}one", epoch=7, instance="ab").dump())
    spool = Spool(str(tmp_path), consumer_id="me", queue="q")
    spool.protocol = "0-9-1"
    state = queue.process(tmp_path)
    with pytest.raises(StateError, match="AMQP_CONSUMER_SPOOL_CHANGED") as changed:
        recover(replace(state._consumer, spool=f"{place}two"), client, state, spool)
    assert "the spool 's3://bucket/spool', and" in str(changed.value)
    assert "s3://bucket/spool with other parameters behind its '?'" in str(changed.value)


@pytest.mark.parametrize("behind", ["the acknowledgement", "its barrier"])
def test_a_batch_is_in_doubt_although_what_shows_it_was_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: str
) -> None:
    """While the link to the leader is broken, a batch is acknowledged. What comes again before an answer has no room,
    since all of it is here for the second time."""
    queue = Queue(tmp_path)
    empty = ConsumerState("me", "q", str(tmp_path), epoch=7, instance="ab")
    batch = OwnedBatch(epoch=7, sequence=0, begin=0, end=1, nbytes=1, file="file", checksum="")
    head = Identity(bytes(16), 0, named=True)
    state = queue.process(tmp_path)
    monkeypatch.setattr(state, "_identities", lambda _file, _checksum: [head])
    state.create(empty.dump())
    state.enter()
    monkeypatch.setattr(state, "_head", lambda: (head,))

    def come_again(_queue: str = "") -> None:
        queue.again = [head._replace(deliveries=1)]
        state.overlooked(FakeBlock(bytes(10), [10], 7, 10))

    owns = replace(empty, sequence=1, owned=(batch,)).dump()
    state.oldest = queue.now
    if behind == "its barrier":
        monkeypatch.setattr(queue, "pass_barrier", lambda _queue: None)
        state.swap(owns, accept=[(1, 1)])
        come_again()  # the session ends before anything else is asked
    else:
        monkeypatch.setattr(queue, "pass_barrier", come_again)
        with pytest.raises(ConsumerStalled, match="AMQP_MESSAGES_TAKEN_BACK"):
            state.swap(owns, accept=[(1, 1)])
    state.take()
    state.enter()
    assert state.in_doubt
