"""SIGKILL for a worker of Spark that publishes to RabbitMQ: rows that come twice are known by their message ids."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest

from amqp_spark import crashpoints
from tests.broker.sink_0_9_support import Place
from tests.broker.sink_scenarios import put_file
from tests.broker.sink_support import login
from tests.support.query_process import CrashPoints, Publishing, QueryProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.rabbitmq import RabbitMQNode

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(600)]

PER_FILE = 300
FILES = 4
COUNT = FILES * PER_FILE


@pytest.fixture(scope="module")
def points() -> Iterator[CrashPoints]:
    with closing(CrashPoints()) as points:
        yield points


@pytest.fixture(scope="module")
def process(points: CrashPoints) -> Iterator[QueryProcess]:
    with QueryProcess(points=points) as process:
        yield process


@pytest.mark.sampled("entry", every=2)
@pytest.mark.parametrize("point", [crashpoints.BLOCK_SENT, crashpoints.SYNCED])
@pytest.mark.parametrize("entry", ["stream", "foreachBatch"])
def test_a_task_that_is_tried_again_sends_the_same_message_ids(
    rabbitmq: RabbitMQNode, process: QueryProcess, tmp_path: Path, entry: str, point: str
) -> None:
    with ExitStack() as stack:
        place = Place(rabbitmq, "classic", stack)  # its count is never late
        queue = place.queue()
        options = login(rabbitmq, protocol="0-9-1", routingKey=queue, stableMessageId="true")
        write = Publishing(name=queue, entry=entry, options=options, directory=tmp_path)
        for begin in range(0, COUNT, PER_FILE):
            put_file(write.rows, begin, begin + PER_FILE)
        process.kill(process.run_to_point(write, point))
        assert process.wait(write) is None, "a lost worker is Spark's to replace"
        count = place.count(queue)
        if point == crashpoints.SYNCED:
            assert count == COUNT + PER_FILE
        messages = place.received(queue, count)
    copies = Counter((message.properties.message_id, int(message.body)) for message in messages)
    assert len({message_id for message_id, _ in copies}) == COUNT, "each row has an id of its own"
    assert sorted(number for _, number in copies) == list(range(COUNT)), "the same in each attempt"
    assert None not in {message_id for message_id, _ in copies}
    assert max(copies.values()) <= 2
