"""SIGKILL for every process of a write at every named point: no row is lost, and what comes twice is known.

``AMQP_SPARK_CRASH_ROUNDS`` repeats everything so often.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from amqp_spark import crashpoints
from tests.broker.crash_scenarios import Setting
from tests.broker.sink_scenarios import Target, duplicates, put_file, taken, transfer
from tests.support.dial import address, by_way_of
from tests.support.proxy import FaultProxy
from tests.support.query_process import Publishing, QueryProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.fixtures import Broker, Connect, OwnBroker

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.timeout(600)]

ROUNDS = range(int(os.environ.get("AMQP_SPARK_CRASH_ROUNDS", "1")))
ENTRIES = ("stream", "foreachBatch", "batch")
PER_FILE = 300
FILES = 6
"""Each is a task; one or two are a batch of a stream."""
COUNT = FILES * PER_FILE


@pytest.fixture
def proxy(broker: Broker) -> Iterator[FaultProxy]:
    with FaultProxy(address(broker)) as proxy:
        yield proxy


def prepare(
    setting: Setting, entry: str, *, files_per_batch: int = 2, lose: dict[str, Any] | None = None, **options: Any
) -> Publishing:
    """A queue, files with rows 0 to ``COUNT``, and a write of these to that."""
    name = f"sink-{uuid.uuid4().hex[:8]}"
    setting.client.declare_queue(name, durable=setting.vhost == "durable")
    write = Publishing(
        name=name,
        entry=entry,
        options=Target(setting.broker, name, setting.vhost).options(**options),
        directory=setting.directory / name,
        files_per_batch=files_per_batch,
        lose=lose,
    )
    for begin in range(0, COUNT, PER_FILE):
        put_file(write.rows, begin, begin + PER_FILE)
    return write


# How many rows come twice when the process at the point is killed, least and most. What is in a socket when its process
# is killed still arrives, or does not.
OF_A_TASK = {
    crashpoints.SYNCED: (PER_FILE, PER_FILE),
    crashpoints.TASK_STARTED: (0, 0),
    crashpoints.BLOCK_SENT: (0, PER_FILE),
    crashpoints.ALL_SENT: (0, PER_FILE),
}


def must_be_there(setting: Setting, write: Publishing, least: int, most: int) -> None:
    """No row is lost, and duplicates are as many as can be explained."""
    twice = duplicates(taken(setting.client, write.name), COUNT)
    assert least <= twice <= most, f"{write.entry}: {twice} rows came twice"


@pytest.mark.thorough
@pytest.mark.parametrize("repeat", ROUNDS)
@pytest.mark.parametrize("point", OF_A_TASK)
def test_worker_killed(setting: Setting, driver: QueryProcess, point: str, repeat: int) -> None:
    """Spark replaces the worker, and the task is tried again."""
    writes = [prepare(setting, ENTRIES[(number + repeat) % 3]) for number in range(3)]
    for write in writes:
        driver.kill(driver.run_to_point(write, point))
        assert driver.wait(write) is None, "a lost worker is Spark's to replace"
    for write in writes:
        must_be_there(setting, write, *OF_A_TASK[point])


@pytest.mark.thorough
@pytest.mark.parametrize("repeat", ROUNDS)
def test_worker_killed_after_its_connection_broke(
    setting: Setting, driver: QueryProcess, proxy: FaultProxy, repeat: int
) -> None:
    struck = proxy.to_broker.cut(transfer(200))
    write = prepare(setting, ENTRIES[repeat % 3], url=by_way_of(proxy.port, setting.broker.url()))
    driver.kill(driver.run_to_point(write, crashpoints.CONNECTION_LOST))
    assert struck.struck.is_set()
    assert driver.wait(write) is None
    must_be_there(setting, write, 0, 199)


@pytest.mark.thorough
@pytest.mark.parametrize("repeat", ROUNDS)
def test_driver_killed(setting: Setting, driver: QueryProcess, repeat: int) -> None:
    """A stream goes on from its checkpoint: the batch that Spark has not logged is written again, whole."""
    points = [*OF_A_TASK, crashpoints.MESSAGE_RETURNED]
    runs = [(ENTRIES[(number + repeat) % 2], point) for number, point in enumerate(points)]
    runs.append((ENTRIES[(len(points) + repeat) % 2], crashpoints.MESSAGE_RETURNED))
    writes = {(entry, point): prepare(setting, entry, files_per_batch=1) for entry, point in runs}
    # One stream per point, each held where it is while the next one starts; then the JVM goes with all of them.
    for (_, point), write in writes.items():
        driver.run_to_point(write, point)
    driver.kill_driver(timeout_s=0.5)  # a worker that waits at a point does not see that its JVM is gone
    setting.points.disarm()
    driver.start()
    driver.drain(writes.values())

    for (_, point), write in writes.items():
        must_be_there(setting, write, *OF_A_TASK.get(point, (PER_FILE, PER_FILE)))


@pytest.mark.thorough
@pytest.mark.parametrize("entry", ENTRIES)
def test_a_task_that_fails_after_rows_were_sent_is_tried_again(
    setting: Setting, driver: QueryProcess, entry: str
) -> None:
    write = prepare(setting, entry, lose={"after": PER_FILE, "fail": "the first attempt fails"})
    driver.start_query(write)
    assert driver.wait(write) is None
    # the first task of each batch of a stream fails once; a batch write has one batch
    most = PER_FILE if entry == "batch" else COUNT // 2
    must_be_there(setting, write, 0, most)


@pytest.mark.thorough
@pytest.mark.parametrize("point", [crashpoints.BLOCK_SENT, crashpoints.ALL_SENT, crashpoints.SYNCED])
def test_broker_killed_in_the_middle_of_a_write(
    own_broker: OwnBroker, connect: Connect, setting: Setting, driver: QueryProcess, point: str
) -> None:
    """Messages that a broker has completed outlive it; the others are sent again."""
    ours = own_broker()
    place = Setting(ours, connect("durable", ours), setting.points, setting.directory, "durable")
    patient: dict[str, Any] = {"retry__maxAttempts": 200, "retry__maxDelay": 0.5}
    writes = [prepare(place, entry, files_per_batch=1, **patient) for entry in ENTRIES]
    held = [driver.run_to_point(write, point) for write in writes]
    ours.kill9()
    for pid in held:
        setting.points.release(point, pid)
    ours.start()
    for write in writes:
        assert driver.wait(write) is None
    setting.points.disarm()
    after = replace(place, client=connect("durable", ours))
    for write in writes:
        if write.entry == "batch":  # the other tasks are somewhere
            must_be_there(after, write, 0, COUNT - PER_FILE if point == crashpoints.SYNCED else COUNT)
        else:
            must_be_there(after, write, 0, 0 if point == crashpoints.SYNCED else PER_FILE)
