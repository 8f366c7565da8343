"""What each of several reader processes gets of the options, and errors on their way to the first process."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from amqp_core.errors import NotFound
from amqp_spark.datasource.divided_stream import parts
from amqp_spark.datasource.reader_process import sent
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import OptionError, ReaderLost
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
