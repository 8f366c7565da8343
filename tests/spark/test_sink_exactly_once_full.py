"""A queue that is too full for a branch: qpidd says so in dtx.prepare, and the task waits and tries again."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pyarrow as pa
import pytest

from amqp_core.errors import ConnectionLost, TransactionFailed
from amqp_core.transfer_ledger import Transfers
from amqp_spark.errors import PublishFailed
from amqp_spark.sink import replay_buffer
from amqp_spark.sink.origins import Origin, origin_of
from tests.spark.test_sink_exactly_once import BEGIN, END, Tasks, rows
from tests.support.fake_broker import FakeBroker

if TYPE_CHECKING:
    from amqp_core.errors import AmqpError

FULL = [*END, "abandon ended"]


def no_room(times: int) -> list[AmqpError]:
    return [TransactionFailed("dtx.prepare", 1, "XA_RBROLLBACK")] * times


@pytest.fixture
def fake() -> FakeBroker:
    return FakeBroker(qpidd=True)


def test_the_same_rows_go_into_a_new_branch_until_there_is_room(fake: FakeBroker) -> None:
    digest = Tasks(FakeBroker(qpidd=True)).run(rows(5000)).digest
    fake.fails["prepare"] = no_room(3)
    tasks = Tasks(fake)
    task = tasks.task()
    statistics = task.run([rows(2000), rows(3000, 2000)])
    again = [*BEGIN[:1], *BEGIN[2:]]
    assert fake.calls == [*BEGIN, *FULL, *again, *FULL, *again, *FULL, *again, *END]
    assert fake.taken == fake.taken[:5000] * 4
    assert (task.prepared.rows, task.prepared.digest) == (5000, digest)
    assert len({marker.xid for marker in fake.markers}) == 4
    assert task.prepared == fake.markers[-1]
    assert (statistics.messages, statistics.retries, statistics.resent) == (5000, 3, 15_000)
    assert len(tasks.waits) == 3
    assert 0 < tasks.waits[0] < tasks.waits[2], "the waits grow"
    assert (len(fake.clients), fake.clients[0].ended) == (1, "")


def test_it_is_tried_for_as_long_as_the_broker_answers(fake: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    """At-least-once waits for room in a queue as long; the warnings say what can be done."""
    fake.fails["prepare"] = no_room(50)
    tasks = Tasks(fake, **{"retry.maxAttempts": 4, "retry.maxDelay": 7})
    tasks.run(rows(3))
    assert (len(tasks.waits), fake.calls.count("prepare"), len(fake.prepared)) == (50, 51, 1)
    assert max(tasks.waits) <= 7
    assert caplog.text.count("let consumers take messages") == 50


def test_rows_that_memory_should_not_hold_wait_on_disk(
    fake: FakeBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(replay_buffer, "MOST_BYTES", 100_000)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/elsewhere")
    fake.fails["prepare"] = no_room(2)
    task = Tasks(fake).task()
    runs = [rows(1000, 1000 * number) for number in range(10)]
    assert task.run(runs).messages == 10_000
    assert fake.taken == fake.taken[:10_000] * 3
    assert sum(run.frames.nbytes for run in task.policy._kept._runs) <= 100_000 < task.policy._kept.nbytes
    assert task.policy._kept._file is None
    assert list(tmp_path.iterdir()) == []


def test_rows_on_disk_do_not_keep_the_batches_of_spark_in_memory() -> None:
    """A column is a view of the message that Spark has sent, with the bodies of all its rows."""
    keys, bodies = pa.array(["key one", None, "key three"]), pa.array([bytes(1 << 20)] * 3)
    stream = pa.BufferOutputStream()
    batch = pa.record_batch([keys, bodies], names=["routing_key", "body"])
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    read = pa.ipc.open_stream(stream.getvalue()).read_next_batch()
    column = read.column("routing_key").slice(1)
    kept = replay_buffer.ReplayBuffer()
    kept.nbytes = replay_buffer.MOST_BYTES
    kept.add(Transfers(b"twothree", [3, 8], Origin(7, "orders", column, None, [3, 8])), may_spill=True)
    (run,) = kept.runs()
    kept.close()
    origin = origin_of(run)
    assert (bytes(run.frames), origin.row(1), origin.target(0), origin.target(1)) == (
        b"twothree", 8, ("orders", ""), ("orders", "key three"),
    )  # fmt: skip
    assert memory_of(column) > 3 << 20
    assert memory_of(cast("pa.Array[Any]", origin.routing_key)) < 1000


def memory_of(column: pa.Array[Any]) -> int:
    """Bytes of all that the buffers of a column are views of."""
    size = 0
    for buffer in filter(None, column.buffers()):
        whole = buffer
        while whole.parent is not None:
            whole = whole.parent
        size += whole.size
    return size


@pytest.mark.parametrize(
    "reason", ["no room on disk", "a disk that gets full", "a broker that says at once what it has no room for"]
)
def test_rows_that_cannot_be_kept_are_left_to_spark_after_a_wait(
    fake: FakeBroker, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    def full() -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(replay_buffer, "MOST_BYTES", 100)
    if reason == "no room on disk":
        monkeypatch.setattr(replay_buffer, "_unnamed_file", full)
    elif reason == "a disk that gets full":
        monkeypatch.setattr(replay_buffer, "_unnamed_file", lambda: Path("/dev/full").open("w+b"))  # noqa: SIM115 - the buffer closes it
    else:
        fake.qpidd = False
    fake.fails["prepare"] = no_room(1)
    tasks = Tasks(fake, **{"retry.maxDelay": 7})
    task = tasks.task()
    with pytest.raises(PublishFailed, match=r"too full .*, and its [\d,]+ bytes cannot be kept to be sent again"):
        task.run([rows(3), rows(3, 3)])
    assert tasks.waits == [7.0]
    assert task.policy._kept._runs == [], "nothing is held in vain"
    assert fake.calls == [*BEGIN, *FULL]


def test_a_connection_that_is_lost_while_the_branch_is_rolled_back(fake: FakeBroker) -> None:
    fake.fails["prepare"] = no_room(1)
    tasks = Tasks(fake)
    sleep = tasks.waits.append

    def cut(seconds: float) -> None:
        sleep(seconds)
        fake.clients[-1].error = ConnectionLost("cut while it waited")

    task = tasks.task()
    task.policy._sleep = cut
    assert task.run([rows(3)]).messages == 3
    assert [client.ended for client in fake.clients] == ["discarded", ""]
    assert (len(fake.prepared), len(fake.taken)) == (1, 6)


def test_what_is_discarded_is_counted_once(fake: FakeBroker) -> None:
    fake.fails["prepare"] = no_room(2)
    statistics = Tasks(fake, onUnroutable="discard").task().run([rows(4, routing_key=["k", "x", "", "k"])])
    assert (statistics.messages, statistics.discarded, len(fake.taken)) == (2, 2, 12)


def test_another_broker_that_cannot_take_what_is_encoded(fake: FakeBroker) -> None:
    fake.fails["prepare"] = no_room(1)
    tasks = Tasks(fake)
    task = tasks.task()

    def swap(_: float) -> None:
        fake.max_frame_size = 4096
        fake.clients[-1].error = ConnectionLost("failed over")

    task.policy._sleep = swap
    with pytest.raises(PublishFailed, match=r"takes smaller frames \(4096 bytes instead of 65535\)"):
        task.run([rows(3)])
    assert (fake.prepared, fake.clients[-1].ended) == ({}, "discarded")
