"""Option ``numReaders`` with lost connections, processes that stop for a while, kills, and restarts with another number
of processes; without Spark."""

from __future__ import annotations

import random
import threading
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.broker.reader_process import ReaderProcess
from tests.broker.several_readers_support import Place, all_rows, of_queue, processes
from tests.broker.source_0_9_support import drained
from tests.broker.stream_support import numbers, publish
from tests.spark.driver import Driver
from tests.support.dial import address, by_way_of
from tests.support.process import wait_until
from tests.support.proxy import FaultProxy
from tests.support.slowlink import SlowLink

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.spark.driver import Row
    from tests.support.fixtures import Broker, Connect

pytestmark = [pytest.mark.broker]

BUFFER = 8_000_000
LARGE = 1_000_000
BEYOND = (16 << 20) + LARGE + 100_000
"""Bytes that each process may hold beyond its share of bufferBytes."""


@pytest.fixture
def place(broker: Broker, connect: Connect) -> Iterator[Place]:
    with closing(Place(broker, connect(heartbeat=0))) as made:
        yield made


def gapless(positions: list[int]) -> bool:
    return positions == list(range(len(positions)))


def test_at_most_once_repeats_nothing_in_a_restart(place: Place) -> None:
    for queue in place.queues:
        publish(place.client, queue, numbers(200))
    options = {"deliveryGuarantee": "at-most-once", "maxMessagesPerTrigger": 50}
    driver = Driver(place.reader(**options), available_now=True)
    drained(driver)
    rows = all_rows(driver)
    assert {queue: of_queue(rows, queue) for queue in place.queues} == dict.fromkeys(place.queues, numbers(200))
    assert place.left() == 0
    driver.reader.stop()
    for queue in place.queues:
        publish(place.client, queue, numbers(200, 200))
    again = Driver(place.reader(numReaders=3, **options), driver)
    rows += again.trigger_until_rows()
    while again.trigger(fail=True) is None:
        pass
    again.reader.stop()
    last = Driver(place.reader(**options), again, available_now=True)
    assert last.restart_batch() == []
    drained(last)
    rows += all_rows(last)
    assert len({(row[0], row[2]) for row in rows}) == len(rows)
    assert place.left() == 0


@pytest.mark.parametrize("transfer", ["auto", "pull"])
def test_each_process_rejects_what_does_not_fit(place: Place, transfer: str) -> None:
    for queue in place.queues:
        publish(place.client, queue, [b"bad 1", *numbers(50), b"bad 2", *numbers(50, 50)])
    driver = Driver(place.reader(mode="REJECT", transfer=transfer), available_now=True)
    drained(driver)
    for queue in place.queues:
        assert of_queue(all_rows(driver), queue) == numbers(100)
    assert place.left() == 0
    report = driver.reader.reportLatestOffset()
    assert report is not None
    assert [report[queue]["metrics"]["rejected"] for queue in place.queues] == [2, 2, 2]


@pytest.mark.parametrize("bounded", [True, False])
def test_every_message_arrives_over_connections_that_break(place: Place, bounded: bool) -> None:
    chance = random.Random(bounded)
    for queue in place.queues:
        publish(place.client, queue, [body + b"x" * 2000 for body in numbers(1000)])
    with FaultProxy(address(place.broker), record=False) as proxy:
        url = by_way_of(proxy.port, place.broker.url())
        reader = place.reader(
            url=url, maxMessagesPerTrigger=100, **{"retry.maxDelay": "0.1", "retry.maxAttempts": 1000}
        )
        driver = Driver(reader, available_now=bounded)
        for _ in range(30):
            if driver.trigger() is not None and chance.random() < 0.3:
                proxy.cut_all(chance.choice(["reset", "fin"]))
        if bounded:
            drained(driver)
        else:
            driver.until(lambda rows: len({(row[0], row[2]) for row in rows}) == 3000)
            wait_until(lambda: driver.trigger() is None and place.left() == 0, "everything is accepted")
        reader.stop()
    rows = all_rows(driver)
    assert len({(row[0], row[2]) for row in rows}) == 3000
    for queue in place.queues:
        assert gapless([row[1] for row in rows if row[0] == queue])
    assert place.left() == 0


@pytest.mark.parametrize("bytes_per_second", [None, 20e6])
def test_what_all_processes_hold_is_bounded(place: Place, bytes_per_second: float | None) -> None:
    for queue in place.queues:
        publish(place.client, queue, [b"s" * 200] * 2000)
        for _ in range(5):
            publish(place.client, queue, [b"L" * LARGE] * 8)
    with ExitStack() as stack:
        url = place.broker.url()
        if bytes_per_second is not None:
            url = by_way_of(stack.enter_context(SlowLink(address(place.broker), bytes_per_second)).port, url)
        reader = place.reader(url=url, numReaders=3, bufferBytes=BUFFER, maxBytesPerTrigger=BUFFER // 2, heartbeat=2)
        driver = Driver(reader)
        count = most = 0
        while count < 3 * 2040:
            count += len(driver.trigger() or ())
            driver.batches.clear()
            report = reader.reportLatestOffset() or {}
            most = max(most, sum(entry["metrics"]["heldBytes"] for entry in report.values()))
        reader.stop()
    assert count == 3 * 2040
    assert 0 < most <= BUFFER + 3 * BEYOND


def test_the_number_of_processes_may_change_between_runs(place: Place) -> None:
    sent = 0
    driver: Driver | None = None
    rows: list[Row] = []
    for count in (1, 3, 2, 1, 2):
        for queue in place.queues:
            publish(place.client, queue, numbers(30, sent))
        sent += 30
        again = Driver(place.reader(numReaders=count, maxMessagesPerTrigger=20), driver)
        # the batch that was logged and not committed is empty: the broker sends its messages again
        assert driver is None or again.restart_batch() == []
        driver = again
        driver.rows(40)
        while driver.trigger(fail=True) is None:
            pass
        rows += all_rows(driver)
        driver.reader.stop()
    last = Driver(place.reader(numReaders=3), driver, available_now=True)
    assert last.restart_batch() == []
    drained(last)
    rows += all_rows(last)
    assert {(row[0], row[2]) for row in rows} == {(queue, body) for queue in place.queues for body in numbers(sent)}
    assert place.left() == 0


@pytest.mark.parametrize("seed", range(2))
def test_processes_that_stop_for_a_while_lose_and_repeat_nothing(place: Place, seed: int) -> None:
    chance = random.Random(seed)
    sent = dict.fromkeys(place.queues, 0)
    driver = Driver(place.reader(numReaders=2 + seed, maxMessagesPerTrigger=chance.choice([9, 50, 1000])))
    driver.latest()
    running = processes(driver.reader)
    resuming: list[threading.Timer] = []
    for _ in range(150):
        match chance.choice("ppppsltttttr"):
            case "p":
                queue, count = chance.choice(place.queues), chance.randint(1, 40)
                publish(place.client, queue, numbers(count, sent[queue]))
                sent[queue] += count
            case "s":
                stopped = chance.choice(running)
                stopped.suspend()
                resuming.append(threading.Timer(chance.uniform(0.001, 0.3), stopped.resume))
                resuming[-1].start()
            case "l":
                driver.latest()
            case "t":
                driver.trigger()
            case "r" if driver.trigger(fail=True) is not None:
                first, second = (driver.read(driver.last_partitions) for _ in range(2))
                assert first == second
                driver.batches.append(first)
                driver.commits += 1
    for each in resuming:
        each.join()
    rows = driver.rows(sum(sent.values()))
    assert driver.latest() == driver.start
    for queue, count in sent.items():
        assert of_queue(rows, queue) == numbers(count)
        assert gapless(sorted(row[1] for row in rows if row[0] == queue))
    wait_until(lambda: place.left() == 0, "everything is accepted")


class Query(ReaderProcess):
    """A query in a process of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def family(self) -> list[psutil.Process]:
        """The first process, and the further ones."""
        assert self._reader is not None
        first = psutil.Process(self._reader.pid)
        return [first, *first.children()]

    def has_more_than(self, count: int) -> bool:
        """Whether it has read more messages than so many."""
        return self.is_well() and self.sink().total() > count


def all_ended(family: list[psutil.Process]) -> bool:
    def ended(process: psutil.Process) -> bool:
        try:
            return process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    return all(map(ended, family))


def test_kills_of_any_process_lose_nothing_and_leave_none_behind(place: Place, tmp_path: Path) -> None:
    chance = random.Random(1)
    query = Query(tmp_path / "query")
    query.prepare(place.options | {"protocol": "0-10", "maxMessagesPerTrigger": "40"})
    sent = 0
    with closing(query):
        for round_ in range(5):
            query.start()
            wait_until(lambda: query.is_well() and len(query.family()) == 3, "processes are started")
            if round_:  # in the first round, the further processes have not begun
                before = query.sink().total()
                for queue in place.queues:
                    publish(place.client, queue, [queue[-1:].encode() + body for body in numbers(100, sent)])
                sent += 100
                wait_until(partial(query.has_more_than, before), "some are read")
            family = query.family()
            chance.choice(family if round_ else family[:1]).kill()
            wait_until(lambda: not query.runs, "the query has ended")
            query.kill()
            wait_until(partial(all_ended, family), "no process is left")
        query.start()
        sink = query.drained(lambda: place.left() == 0)
    wanted = {queue[-1:].encode() + body for queue in place.queues for body in numbers(sent)}
    assert set(sink) == wanted
