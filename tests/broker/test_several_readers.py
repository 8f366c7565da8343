"""Option ``numReaders``: several processes receive the queues of a query; Broker-J, without Spark."""

from __future__ import annotations

import errno
import json
import os
import random
import socket
import subprocess
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.errors import AuthenticationFailed, NotFound
from amqp_spark import crashpoints
from amqp_spark.connect import connect as connector
from amqp_spark.datasource.divided_stream import _Reader, parts
from amqp_spark.datasource.reader_calls import Task
from amqp_spark.errors import OffsetError, ReaderLost, TransferError, UnsupportedModeError
from amqp_spark.offsets import dump_offsets, initial_offsets
from tests.broker.several_readers_support import Place, all_rows, of_queue, processes, readers_of
from tests.broker.stream_support import numbers, publish, subscribers
from tests.spark.driver import Driver, bodies, dumps
from tests.support.process import wait_until
from tests.support.query_process import CrashPoints

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.fixtures import Broker, Connect

pytestmark = [pytest.mark.broker]

KILLED_AT = (
    crashpoints.RECEIVED_UNPLANNED,
    crashpoints.END_RETURNED_UNLOGGED,
    crashpoints.LOGGED_BEFORE_PARTITIONS,
    crashpoints.PARTITIONS_RETURNED,
    crashpoints.COMMIT_LOGGED,
    crashpoints.ACCEPT_UNSENT,
    crashpoints.ACCEPT_SENT,
)


@pytest.fixture
def place(broker: Broker, connect: Connect) -> Iterator[Place]:
    with closing(Place(broker, connect(heartbeat=0))) as made:
        yield made


def test_available_now_takes_each_message_of_mixed_sizes_once(place: Place) -> None:
    sizes = random.Random(7)
    sent = {
        queue: [body + b"x" * int(10 ** sizes.uniform(0, 5)) for body in numbers(count)]
        for queue, count in zip(place.queues, (400, 30, 900), strict=True)
    }
    for queue, each in sent.items():
        publish(place.client, queue, each)
    reader = place.reader(maxBytesPerTrigger="1m", bufferBytes="4m")
    driver = Driver(reader, available_now=True)
    most = 0
    while (rows := driver.trigger()) is not None:
        most = max(most, sum(len(row[2]) for row in rows))
    rows = all_rows(driver)
    assert {queue: of_queue(rows, queue) for queue in place.queues} == sent
    assert len(rows) == 1330
    assert most <= 1 << 20
    assert place.left() == 0


def test_a_query_goes_on_and_reports_all_queues(place: Place) -> None:
    reader = place.reader(numReaders=64, maxMessagesPerTrigger=10)
    driver = Driver(reader)
    driver.latest()
    assert len(processes(reader)) == len(place.queues), "one for each queue at most"
    for round_ in range(3):
        for at, queue in enumerate(place.queues):
            publish(place.client, queue, numbers(7 * at, 100 * round_))
        driver.rows(21 * (round_ + 1))
    driver.latest()
    assert max(map(len, driver.batches)) <= 10
    assert list(driver.offsets[-1]) == sorted(place.queues)
    report = reader.reportLatestOffset()
    assert report is not None
    assert list(report) == sorted(place.queues)
    assert [report[queue]["metrics"]["received"] for queue in place.queues] == [0, 21, 42]
    assert {report[queue]["metrics"]["bufferBytes"] for queue in place.queues} == {128 << 20}
    reader.commit(driver.offsets[-1])
    wait_until(lambda: place.left() == 0, "everything is accepted")


def test_a_process_that_does_not_answer_holds_up_its_own_queues_only(place: Place) -> None:
    first, second, third = place.queues
    driver = Driver(place.reader())
    for queue in place.queues:
        publish(place.client, queue, numbers(5))
    driver.rows(15)
    one, other = processes(driver.reader)  # of the first and third queue, of the second
    other.suspend()
    try:
        for queue in place.queues:
            publish(place.client, queue, numbers(5, 5))
        rows = driver.rows(25)
    finally:
        other.resume()
    assert of_queue(rows, second) == numbers(5)
    assert of_queue(rows, first) == of_queue(rows, third) == numbers(10)
    assert of_queue(driver.rows(30), second) == numbers(10)
    assert one.is_running()


def test_a_process_that_does_not_answer_holds_up_no_other_when_nothing_is_there(place: Place) -> None:
    first, second, third = place.queues
    driver = Driver(place.reader())
    driver.latest()
    other = processes(driver.reader)[1]
    other.suspend()
    try:
        assert [driver.trigger() for _ in range(3)] == [None] * 3
        for queue in place.queues:
            publish(place.client, queue, numbers(5))
        rows = driver.rows(10)
    finally:
        other.resume()
    assert of_queue(rows, first) == of_queue(rows, third) == numbers(5)
    assert of_queue(driver.rows(15), second) == numbers(5)


def test_a_stop_ends_processes_and_returns_messages(place: Place) -> None:
    for queue in place.queues:
        publish(place.client, queue, numbers(50))
    driver = Driver(place.reader())
    while {row[0] for row in driver.until(bool)} != set(place.queues):
        driver.trigger()
    running = processes(driver.reader)
    driver.reader.stop()
    assert not any(each.is_running() for each in running)
    assert [subscribers(place.client, queue) for queue in place.queues] == [0, 0, 0]
    again = Driver(place.reader(), driver)
    seen = {(row[0], row[2]) for row in again.until(lambda rows: len({(r[0], r[2]) for r in rows}) == 150)}
    assert len(seen) == 150


@pytest.mark.parametrize("bounded", [False, True])
def test_a_stop_interrupts_a_process_that_waits(place: Place, bounded: bool) -> None:
    driver = Driver(place.reader(), available_now=bounded)
    assert driver.trigger() is None
    running = processes(driver.reader)
    driver.reader.stop()
    assert not any(each.is_running() for each in running)


@pytest.mark.parametrize("point", KILLED_AT)
def test_a_killed_process_ends_the_query_and_loses_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    points = CrashPoints()
    monkeypatch.setenv(crashpoints.VARIABLE, str(points.directory))  # this process has read it, and is not killed
    for queue in place.queues:
        publish(place.client, queue, numbers(60))
    driver = Driver(place.reader(maxMessagesPerTrigger=24))
    driver.trigger_until_rows()
    points.arm(point, action="kill")
    sent = dict.fromkeys(place.queues, 60)

    def go_on() -> None:
        for queue in place.queues * 500:
            publish(place.client, queue, numbers(1, sent[queue]))
            sent[queue] += 1
            driver.trigger()

    with pytest.raises(ReaderLost, match=r"AMQP_READER_LOST.*'readers-.* was ended by signal 9"):
        go_on()
    driver.reader.stop()
    points.close()
    again = Driver(place.reader(), driver)
    rows = all_rows(driver)
    rows += again.restart_batch() or []
    wanted = {(queue, body) for queue, count in sent.items() for body in numbers(count)}
    while not wanted <= {(row[0], row[2]) for row in rows}:
        rows += again.trigger() or []
    assert {(row[0], row[2]) for row in rows} == wanted


def test_a_batch_before_the_commit_of_another_process_is_refused(place: Place) -> None:
    first, second, _third = place.queues  # in different processes
    reader = place.reader()
    driver = Driver(reader)
    publish(place.client, first, numbers(3))
    while (end := driver.latest()) == driver.start:
        pass
    driver.offsets.append(end)
    reader.partitions(driver.initial, end)
    driver.commits = 1  # as asynchronous progress tracking does: Spark has not called commit
    publish(place.client, second, numbers(3))
    while (after := driver.latest()) == end:
        pass
    with pytest.raises(UnsupportedModeError, match="Asynchronous progress tracking"):
        reader.partitions(end, after)


def test_an_answer_that_there_is_nothing_is_asked_for_again(place: Place) -> None:
    first = place.queues[0]
    driver = Driver(place.reader())
    driver.trigger()
    _one, other = processes(driver.reader)
    other.suspend()
    try:
        publish(place.client, first, numbers(5))
        driver.rows(5)
    finally:
        other.resume()
    waiting = readers_of(driver.reader)[1]
    assert waiting.asked
    wait_until(waiting.pipe.poll, "the process to answer")
    waiting.ask(driver.start)
    assert waiting.asked, "its answer is as old as its call"
    publish(place.client, place.queues[1], numbers(5))
    driver.rows(10)


def test_a_batch_of_an_earlier_run_has_all_processes_receive(place: Place) -> None:
    first = place.queues[0]
    publish(place.client, first, numbers(5))
    driver = Driver(place.reader())
    while driver.trigger(fail=True) is None:
        pass
    driver.reader.stop()
    wait_until(lambda: not any(subscribers(place.client, queue) for queue in place.queues), "the processes have gone")
    again = Driver(place.reader(), driver, available_now=True)
    assert again.restart_batch() == []
    wait_until(lambda: all(subscribers(place.client, queue) for queue in place.queues), "all queues are subscribed")
    again.rows(5)


def test_a_process_whose_parent_has_gone_receives_nothing(place: Place) -> None:
    (options,) = parts(place.reader(numReaders=1)._options)
    orphan = _Reader(Task(options, connector, bounded=False, settings={}, parent=1))
    orphan.ask(dump_offsets(initial_offsets(place.queues)))
    assert orphan._process.wait(20) == 0
    orphan.pipe.close()


def test_a_process_that_cannot_be_started_ends_the_others(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def popen(*args: Any, **named: Any) -> subprocess.Popen[bytes]:
        if started:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        started.append(real(*args, **named))
        return started[0]

    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", popen)
    with pytest.raises(ReaderLost, match=r"AMQP_READER_LOST.* could not be started: Resource temporarily unavailable"):
        Driver(place.reader()).latest()
    assert started[0].returncode is not None


def test_a_process_that_was_ended_ends_the_query(place: Place) -> None:
    driver = Driver(place.reader())
    driver.latest()
    for each in processes(driver.reader):
        each.terminate()
        each.wait(10)
    with pytest.raises(ReaderLost, match="ended with status 0"):
        driver.latest()


def test_errors_are_those_of_one_process(place: Place) -> None:
    driver = Driver(place.reader(queue=f"{place.queues[0]},nowhere"))
    with pytest.raises(NotFound, match=r"AMQP_QUEUE_NOT_FOUND.*'nowhere'"):
        driver.rows(1)
    with pytest.raises(AuthenticationFailed):
        Driver(place.reader(password="wrong")).rows(1)


def test_each_process_has_its_own_port(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        driver = Driver(place.reader(transfer="pull", transferPort=port - 1, transferHost="127.0.0.1"))
        with pytest.raises(TransferError, match=f"AMQP_TRANSFER_PORT_IN_USE.* {port}"):
            driver.rows(1)


def test_offsets_of_other_queues_are_refused(place: Place) -> None:
    reader = place.reader()
    driver = Driver(reader)
    with pytest.raises(OffsetError, match="AMQP_OFFSET_QUEUES_CHANGED"):
        reader.latestOffset({**driver.initial, "other": {"position": 0, "version": 1}}, driver.limit)
    with pytest.raises(OffsetError, match="AMQP_OFFSET_QUEUES_CHANGED"):
        reader.commit({})


def test_what_executors_get_has_no_login(place: Place) -> None:
    publish(place.client, place.queues[1], numbers(3))
    driver = Driver(place.reader(password=place.broker.password))
    driver.rows(3)
    sent = dumps([driver.reader, *driver.last_partitions])
    assert place.broker.password.encode() not in sent
    for each in processes(driver.reader):
        shown = json.dumps([each.cmdline(), each.environ()])
        assert f'"{place.broker.password}"' not in shown
    assert bodies(driver.batches[-1]) == numbers(3)
