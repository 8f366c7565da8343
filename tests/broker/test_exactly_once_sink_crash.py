"""SIGKILL for every process of an exactly-once write at every named point: every row is there once."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from amqp_spark import crashpoints
from tests.broker.crash_scenarios import Setting
from tests.broker.exactly_once_support import Writer, nothing_is_left
from tests.broker.sink_scenarios import Target, duplicates, put_file, taken
from tests.support.choice import all_cases
from tests.support.process import wait_until
from tests.support.query_process import Publishing, QueryProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.fixtures import Connect, OwnBroker

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.thorough, pytest.mark.timeout(600)]

ROUNDS = range(int(os.environ.get("AMQP_SPARK_CRASH_ROUNDS", "1")))
ENTRIES = ("stream", "foreachBatch", "batch")
PER_FILE = 300
FILES = 4
"""Each is a task; two are a batch of a stream."""
COUNT = FILES * PER_FILE

TASK_POINTS = [
    crashpoints.TASK_STARTED,
    crashpoints.BRANCH_OPEN,
    crashpoints.BLOCK_SENT,
    crashpoints.ALL_SENT,
    crashpoints.SYNCED,
    crashpoints.ENDED,
    crashpoints.PREPARED,
]
DRIVER_POINTS = [
    crashpoints.MESSAGE_RETURNED,
    crashpoints.SINK_LOCK_TAKEN,
    crashpoints.VERIFIED,
    crashpoints.DECISION_SENT,
    crashpoints.DECISION_COMMITTED,
    crashpoints.SOME_COMMITTED,
    crashpoints.ALL_COMMITTED,
    crashpoints.DONE_SWAPPED,
]


@dataclass(frozen=True)
class Case:
    """A write of rows 0 to ``COUNT``, and the writer whose queues it uses."""

    write: Publishing
    writer: Writer

    def must_be_there(self, setting: Setting) -> None:
        twice = duplicates(taken(setting.client, self.write.name), COUNT)
        assert not twice, f"{self.write.entry}: {twice} rows came twice"
        nothing_is_left(setting.client, self.writer)


def prepare(setting: Setting, entry: str, *, lose: dict[str, Any] | None = None, **options: Any) -> Case:
    name = f"once-{uuid.uuid4().hex[:8]}"
    setting.client.declare_queue(name, durable=setting.vhost == "durable")
    writer = Writer(setting.broker, name, setting.vhost)
    more = {"batchId": 1} if entry == "batch" else {}
    target = Target(setting.broker, name, setting.vhost)
    given = target.options(deliveryGuarantee="exactly-once", transactionalId=writer.identity, **more, **options)
    write = Publishing(name=name, entry=entry, options=given, directory=setting.directory / name, lose=lose)
    for begin in range(0, COUNT, PER_FILE):
        put_file(write.rows, begin, begin + PER_FILE)
    return Case(write, writer)


@pytest.mark.thorough
@pytest.mark.parametrize("repeat", ROUNDS)
@pytest.mark.parametrize("point", TASK_POINTS)
def test_worker_killed(setting: Setting, driver: QueryProcess, point: str, repeat: int) -> None:
    """Spark replaces the worker, and the task is tried again; what it had prepared is swept."""
    case = prepare(setting, ENTRIES[(TASK_POINTS.index(point) + repeat) % 3])
    driver.kill(driver.run_to_point(case.write, point))
    assert driver.wait(case.write) is None, "a lost worker is Spark's to replace"
    case.must_be_there(setting)


@pytest.mark.thorough
@pytest.mark.parametrize("repeat", ROUNDS)
@pytest.mark.parametrize("point", DRIVER_POINTS)
def test_process_of_the_decision_killed(setting: Setting, driver: QueryProcess, point: str, repeat: int) -> None:
    """Of a stream writer it is a Python worker beside the driver: the query fails, and is started again."""
    case = prepare(setting, "stream")
    driver.kill(driver.run_to_point(case.write, point))
    assert driver.wait(case.write) is not None
    driver.drain([case.write])
    case.must_be_there(setting)


@pytest.mark.thorough
@pytest.mark.parametrize("repeat", ROUNDS)
def test_driver_killed(setting: Setting, driver: QueryProcess, repeat: int) -> None:
    """Streams go on from their checkpoints, the batch write is run again with its batch id."""
    points = [*TASK_POINTS, *DRIVER_POINTS] if all_cases() else [*TASK_POINTS, *DRIVER_POINTS][1::5]
    cases = {point: prepare(setting, ENTRIES[(number + repeat) % 3]) for number, point in enumerate(points)}
    # One write per point, each held where it is while the next one starts; then the JVM goes with all of them.
    for point, case in cases.items():
        driver.run_to_point(case.write, point)
    driver.kill_driver(timeout_s=0.5)  # a worker that waits at a point does not see that its JVM is gone
    setting.points.disarm()
    driver.start()
    for case in cases.values():
        if case.write.entry == "batch":
            driver.start_query(case.write)
            assert driver.wait(case.write) is None
    driver.drain(case.write for case in cases.values() if case.write.entry != "batch")
    for case in cases.values():
        case.must_be_there(setting)


@pytest.mark.thorough
@pytest.mark.sampled("entry", every=3)
@pytest.mark.parametrize("entry", ENTRIES)
def test_a_task_that_fails_after_rows_were_sent_is_tried_again(
    setting: Setting, driver: QueryProcess, entry: str
) -> None:
    case = prepare(setting, entry, lose={"after": PER_FILE, "fail": "the first attempt fails"})
    driver.start_query(case.write)
    assert driver.wait(case.write) is None
    case.must_be_there(setting)


@pytest.mark.sampled("point", every=3)
@pytest.mark.parametrize("point", [crashpoints.DECISION_COMMITTED, crashpoints.PREPARED, crashpoints.SOME_COMMITTED])
def test_broker_killed(
    own_broker: OwnBroker, connect: Connect, setting: Setting, driver: QueryProcess, point: str
) -> None:
    """Prepared branches and the state outlive a broker with a store."""
    ours = own_broker()
    place = Setting(ours, connect("durable", ours, heartbeat=0), setting.points, setting.directory, "durable")
    entries = ENTRIES if point != crashpoints.PREPARED else ENTRIES[:1]
    cases = [prepare(place, entry, retry__maxAttempts=200, retry__maxDelay=0.5) for entry in entries]
    held = [driver.run_to_point(case.write, point) for case in cases]
    ours.kill9()
    for pid in held:
        setting.points.release(point, pid)
    ours.start()
    for case in cases:
        error = driver.wait(case.write)
        if error is not None:  # the other task was in the middle of its rows, four times
            driver.drain([case.write])
    after = Setting(ours, connect("durable", ours), setting.points, setting.directory, "durable")
    for case in cases:
        case.must_be_there(after)


SPECULATION = {
    "spark.master": "two-hosts[1024]",
    "spark.executor.memory": "512m",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "2s",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
}


@pytest.fixture(scope="module")
def speculating(setting: Setting) -> Iterator[QueryProcess]:
    """Two executors that count as two hosts, so that each may run a copy of a slow task of the other."""
    with QueryProcess(points=setting.points, settings=SPECULATION) as process:
        yield process


@pytest.mark.sampled("entry", every=3)
@pytest.mark.parametrize("entry", ENTRIES)
def test_a_slow_task_is_run_twice_and_one_of_them_counts(
    setting: Setting, speculating: QueryProcess, tmp_path: Path, entry: str
) -> None:
    """The first attempt has every row and waits for ever; its copy ends, and Spark kills the first."""
    case = prepare(setting, entry, lose={"after": PER_FILE, "slow": str(tmp_path / "never")})
    speculating.start_query(case.write)
    assert speculating.wait(case.write) is None
    case.must_be_there(setting)


@pytest.mark.sampled("entry", every=3)
@pytest.mark.parametrize("entry", ENTRIES)
def test_a_task_that_has_prepared_and_is_overtaken_is_swept(
    setting: Setting, speculating: QueryProcess, entry: str
) -> None:
    """Spark says nothing of it to whoever commits."""
    case = prepare(setting, entry)
    held = speculating.run_to_point(case.write, crashpoints.PREPARED)
    assert speculating.wait(case.write) is None
    wait_until(lambda: not psutil.pid_exists(held), "Spark to kill the worker of the first attempt", 60)
    setting.points.disarm()
    case.must_be_there(setting)
