"""SIGKILL for every process of a query at every named point: nothing is lost, nothing stays on the broker.

At-least-once loses nothing, and what it repeats is flagged ``redelivered``. At-most-once repeats nothing.
``AMQP_SPARK_CRASH_ROUNDS`` repeats everything so often; every other round uses the other kind of sink.
"""

from __future__ import annotations

import os
import random
import uuid
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import psutil
import pytest

from amqp_spark import crashpoints
from tests.broker.crash_scenarios import (
    MESSAGES,
    PER_BATCH,
    Scenario,
    Setting,
    drain,
    fill,
    outcome,
    points_of,
    prepare,
    run_to_point,
)
from tests.broker.stream_support import depth, subscribers
from tests.support.process import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.fixtures import Connect, OwnBroker
    from tests.support.query_process import QueryProcess

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.thorough, pytest.mark.timeout(600)]

ROUNDS = range(int(os.environ.get("AMQP_SPARK_CRASH_ROUNDS", "1")))
GUARANTEES = ("at-least-once", "at-most-once")
WORKER_POINTS = (crashpoints.READ_STARTED, crashpoints.READ_MID, crashpoints.FETCH_MID)


def _scenarios(setting: Setting, points: list[str], guarantee: str, *, skip_written: bool) -> list[Scenario]:
    run = uuid.uuid4().hex[:6]
    return [prepare(setting, f"crash-{run}-{p}", p, guarantee, skip_written=skip_written) for p in points]


@pytest.mark.thorough
@pytest.mark.parametrize("repeat", ROUNDS)
def test_driver_killed(setting: Setting, driver: QueryProcess, repeat: int) -> None:
    skip_written = repeat % 2 == 0
    scenarios = {
        guarantee: _scenarios(setting, points_of(guarantee), guarantee, skip_written=skip_written)
        for guarantee in GUARANTEES
    }
    # One query per point, each held where it is while the next one starts; then the JVM goes with all of them.
    for scenario in [each for some in scenarios.values() for each in some]:
        run_to_point(driver, scenario)

    assert driver.kill_driver() == [], "these outlived their driver"
    driver.start()

    kept = drain(setting, driver, scenarios["at-least-once"])
    dropped = drain(setting, driver, scenarios["at-most-once"])
    # Where the promise has a price it must show, or these tests would not see a failure either.
    assert bool(kept[crashpoints.BATCH_DONE_UNCOMMITTED].repeated) == skip_written
    assert kept[crashpoints.COMMIT_LOGGED].repeated
    assert dropped[crashpoints.RECEIVED_UNPLANNED].lost


@pytest.mark.thorough
@pytest.mark.parametrize("repeat", ROUNDS)
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_reader_killed(setting: Setting, driver: QueryProcess, guarantee: str, repeat: int) -> None:
    scenarios = _scenarios(setting, points_of(guarantee), guarantee, skip_written=repeat % 2 == 1)
    for scenario in scenarios:
        before = set(driver.readers())
        held = run_to_point(driver, scenario)
        (reader,) = set(driver.readers()) - before
        driver.kill(reader)
        if held != reader:  # a worker or the sink waits at the point
            setting.points.release(scenario.point, held)
        assert driver.wait(scenario.query) is not None, "a query without its reader must fail"

    drain(setting, driver, scenarios)


@pytest.mark.thorough
@pytest.mark.parametrize("repeat", ROUNDS)
@pytest.mark.sampled("guarantee", every=2)
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_worker_killed(setting: Setting, driver: QueryProcess, guarantee: str, repeat: int) -> None:
    scenarios = _scenarios(setting, list(WORKER_POINTS), guarantee, skip_written=True)
    for scenario in scenarios:
        held = run_to_point(driver, scenario, available_now=True)
        if scenario.point == crashpoints.FETCH_MID:  # the reader waits there, and a worker for the reader
            workers = driver.workers()
            assert workers, "no worker waits for the reader"
            for worker in workers:
                driver.kill(worker)
            setting.points.release(scenario.point, held)
        else:
            driver.kill(held)
        assert driver.wait(scenario.query) is None, "a lost worker is Spark's to replace"

    for result in drain(setting, driver, scenarios).values():
        assert result.lost == []
        assert result.repeated == []


@pytest.mark.thorough
@pytest.mark.parametrize("readers", ["1", "2"])
@pytest.mark.parametrize("repeat", ROUNDS)
def test_reader_killed_at_any_moment(setting: Setting, driver: QueryProcess, readers: str, repeat: int) -> None:
    """The same query again and again, over two queues with exclusive subscriptions."""
    moments = random.Random(repeat)
    scenario = prepare(setting, f"any-{uuid.uuid4().hex[:6]}", "", "at-least-once", skip_written=True)
    first, second = scenario.query.name, f"{scenario.query.name}-second"
    setting.client.declare_queue(second)
    several = {"queue": f"{first},{second}", "exclusive": "true", "numReaders": readers}
    scenario.query.options = {**scenario.query.options, **several}
    for begin in (MESSAGES, 3 * MESSAGES, 5 * MESSAGES):
        fill(setting.client, first, begin, begin + MESSAGES)
        fill(setting.client, second, begin + MESSAGES, begin + 2 * MESSAGES)
        enough = len(scenario.query.batches()) + moments.randint(1, 4)
        driver.start_query(scenario.query)
        wait_until(partial(scenario.query.has_batches, enough), "some batches", 60)
        (reader,) = driver.readers()
        driver.kill(reader)
        assert driver.wait(scenario.query) is not None
    setting.points.disarm()
    driver.drain([scenario.query])

    result = outcome(setting, scenario, messages=7 * MESSAGES)
    assert result.problems() == []
    info = setting.client.query_queue(second)
    assert info is not None
    assert info.message_count == 0


def test_reader_frozen_beyond_its_heartbeat(setting: Setting, driver: QueryProcess) -> None:
    """The broker gives its messages back; it goes on with the batch it had planned, and accepts nothing of it."""
    scenario = prepare(setting, f"frozen-{uuid.uuid4().hex[:6]}", "", "at-least-once", skip_written=True)
    query = scenario.query
    query.options = {**query.options, "heartbeat": "1", "retry.maxDelay": "0.2"}
    held = driver.run_to_point(query, crashpoints.BATCH_DONE_UNCOMMITTED, after=1)
    (reader,) = map(psutil.Process, driver.readers())
    reader.suspend()
    try:
        wait_until(lambda: not subscribers(setting.client, query.name), "the broker to drop the frozen reader", 60)
        setting.points.release(crashpoints.BATCH_DONE_UNCOMMITTED, held)
    finally:
        reader.resume()
    wait_until(lambda: not depth(setting.client, query.name), "the queue to be drained", 60)
    driver.stop_query(query)

    result = outcome(setting, scenario)
    assert result.problems() == []
    assert len(result.repeated) == PER_BATCH, "exactly the batch whose accept came too late"


@pytest.mark.thorough
def test_driver_and_broker_killed_together(
    own_broker: OwnBroker, connect: Connect, setting: Setting, driver: QueryProcess, tmp_path: Path
) -> None:
    """Durable messages outlive both; what comes again is not flagged then, since Broker-J recovers it as new."""
    ours = own_broker()
    place = Setting(ours, connect("durable", ours), setting.points, tmp_path, vhost="durable")
    scenario = prepare(place, "both", crashpoints.ACCEPT_SENT, "at-least-once", skip_written=True)
    run_to_point(driver, scenario)
    ours.kill9()
    assert driver.kill_driver() == []
    ours.start()
    driver.start()
    setting.points.disarm()
    driver.drain([scenario.query])

    result = outcome(replace(place, client=connect("durable", ours)), scenario)
    assert result.lost == []
    assert result.left == 0
    # The batch whose accept was cut off, and perhaps the one that Spark worked on meanwhile; not the one before.
    assert 0 not in result.repeated
    assert len(result.repeated) <= 2 * PER_BATCH
