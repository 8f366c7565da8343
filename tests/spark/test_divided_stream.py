"""What each of several reader processes gets of the options, its answers, and errors on their way to the first one."""

from __future__ import annotations

import os
import pickle
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import pytest

from amqp_core.errors import NotFound
from amqp_spark.connect import connect
from amqp_spark.datasource.divided_stream import DividedStream, parts
from amqp_spark.datasource.reader_calls import Answer
from amqp_spark.datasource.reader_process import sent
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import OptionError, ReaderLost
from amqp_spark.offsets import QueueOffset, dump_offsets, initial_offsets
from amqp_spark.options import SourceOptions


def options(queues: str = "a,b,c,d,e", **given: Any) -> SourceOptions:
    return SourceOptions.parse({"url": "amqp://localhost", "queue": queues, "numReaders": 3} | given)


def test_queues_and_bounds_are_shared_out() -> None:
    whole = options("e,d,c,b,a", maxMessagesPerTrigger=11, maxBytesPerTrigger=1000, bufferBytes=2000, transferPort=7000)
    found = parts(whole)
    assert [part.queues for part in found] == [("a", "d"), ("b", "e"), ("c",)]
    assert sorted(part.max_messages_per_trigger or 0 for part in found) == [3, 4, 4]
    assert {(part.max_bytes_per_trigger, part.buffer_bytes) for part in found} == {(333, 666)}
    assert [part.transfer_port for part in found] == [7000, 7001, 7002]


def test_without_bounds_there_are_none() -> None:
    assert {(part.max_messages_per_trigger, part.transfer_port) for part in parts(options())} == {(None, 0)}


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ({}, 3),
        ({"numReaders": 64}, 5),
        ({"numReaders": 1}, 1),
        ({"queues": "a"}, 1),
        ({"maxMessagesPerTrigger": 2}, 2),
        ({"maxMessagesPerTrigger": 1}, 1),
    ],
)
def test_each_process_has_a_queue_and_a_message(given: dict[str, Any], count: int) -> None:
    found = options(**given)
    assert found.readers == len(parts(found)) == count
    assert all(part.queues and part.max_messages_per_trigger != 0 for part in parts(found))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"numReaders": 0}, "'numReaders' has the value '0', which is not allowed. Allowed: an integer from 1 to 64"),
        ({"minMessagesPerTrigger": 5}, "'minMessagesPerTrigger' has the value 5, .* with numReaders=3.*Allowed: 1"),
        ({"transferPort": 65534}, "'transferPort' has the value 65534, .* with numReaders=3. Allowed: 0 to 65533"),
        (
            {"deliveryGuarantee": "exactly-once", "consumerId": "c", "spoolLocation": "/tmp/s"},
            "'numReaders' has the value 3, .* with deliveryGuarantee=exactly-once: .*Allowed: 1",
        ),
        ({"queueType": "stream"}, "Option 'numReaders' has no effect with queueType=stream"),
    ],
)
def test_options_that_need_one_reader_are_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        options(**given)


@pytest.mark.parametrize(
    "error",
    [
        NotFound(404, None, "the queue is missing"),
        ReaderLost(SparkCondition.READER_LOST(queues="'q'", how="was ended by signal 9")),
    ],
)
def test_errors_of_ours_are_sent_as_they_are(error: Exception) -> None:
    assert sent(error) is error
    copy = pickle.loads(pickle.dumps(sent(error)))
    assert (type(copy), str(copy)) == (type(error), str(error))


def test_an_error_that_is_none_of_ours_is_sent_as_text() -> None:
    def fail() -> None:
        raise KeyError("a defect")

    with pytest.raises(KeyError) as raised:
        fail()
    error = sent(raised.value)
    assert type(error) is RuntimeError
    assert "in fail" in str(error)
    assert str(error).endswith("KeyError: 'a defect'")


class _NoProcess:
    """In place of a reader process; the test answers the calls at the other end of its pipe."""

    pipes: list[Connection]

    def __init__(self, _command: list[str], *, pass_fds: tuple[int], **_: object) -> None:
        self.pipes.append(Connection(os.dup(*pass_fds)))

    def terminate(self) -> None:
        self.pipes.pop().close()

    def wait(self, _seconds: float | None = None) -> int:
        return 0


def test_a_batch_that_came_between_two_calls_does_not_wait_for_a_process_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """AvailableNow: the other one may look for the end of its queues for long, or connect again."""
    monkeypatch.setattr(_NoProcess, "pipes", [], raising=False)
    monkeypatch.setattr("amqp_spark.datasource.divided_stream.subprocess.Popen", _NoProcess)
    start = dump_offsets(initial_offsets(("a", "b")))
    stream = DividedStream(options("a,b", numReaders=2), connect, bounded=True)
    a, b = _NoProcess.pipes
    b.send(Answer(dump_offsets({"b": QueueOffset(5, 1)})))
    first = stream.latest_offset(start)
    assert first == start | dump_offsets({"b": QueueOffset(5, 1)})
    a.send(Answer(dump_offsets({"a": QueueOffset(7, 2)})))  # while Spark works
    late = threading.Timer(5.0, b.send, (Answer(dump_offsets({"b": QueueOffset(5, 1)})),))
    late.start()
    begun = time.monotonic()
    assert stream.latest_offset(first) == first | dump_offsets({"a": QueueOffset(7, 2)})
    assert time.monotonic() - begun < 4.0
    late.cancel()
    stream.stop()
