"""The pool: what is kept for whom, what ends, what the thread does, and what a fork leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from amqp_core.address import ConnectOptions
from amqp_core.errors import ConnectionFailed, ConnectionLost
from amqp_spark.sink import connections
from amqp_spark.sink.connections import Connections
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.fake_broker import FakeBroker

HERE = ConnectOptions(hosts=(("here", 5672),), password="s3cret", heartbeat=1)
THERE = ConnectOptions(hosts=(("there", 5672),))


@pytest.fixture
def pool(fake_sink: FakeBroker) -> Iterator[Connections]:
    pool = Connections(fake_sink.connect)
    yield pool
    pool.close()


def test_a_connection_is_kept_for_the_same_options_only(fake_sink: FakeBroker, pool: Connections) -> None:
    first = pool.lease(HERE)
    first.give_back()
    assert pool.idle_count == 1
    other = pool.lease(THERE)
    again = pool.lease(HERE)
    assert (other.reused, again.reused, again.client is first.client) == (False, True, True)
    assert [client.options for client in fake_sink.clients] == [HERE, THERE]
    assert pool.idle_count == 0


def test_two_tasks_at_once_have_one_each_and_the_newest_is_taken_first(pool: Connections) -> None:
    first, second = pool.lease(HERE), pool.lease(HERE)
    assert first.client is not second.client
    second.give_back()
    first.give_back()
    assert pool.lease(HERE).client is first.client


def test_what_broke_while_it_was_idle_is_replaced(fake_sink: FakeBroker, pool: Connections) -> None:
    leases = [pool.lease(HERE) for _ in range(3)]
    for lease in leases:
        lease.give_back()
    for client in fake_sink.clients[1:]:
        client.error = ConnectionLost("cut")
    lease = pool.lease(HERE)
    assert (lease.client is leases[0].client, lease.reused) == (True, True)
    assert [client.ended for client in fake_sink.clients] == ["", "discarded", "discarded"]


def test_an_aborted_one_is_never_used_again(fake_sink: FakeBroker, pool: Connections) -> None:
    pool.lease(HERE).abort()
    assert fake_sink.clients[0].ended == "discarded"
    assert not pool.lease(HERE).reused


def test_a_failed_attempt_leaves_nothing(fake_sink: FakeBroker, pool: Connections) -> None:
    fake_sink.fails["connect"] = [ConnectionFailed("connection refused")]
    with pytest.raises(ConnectionFailed):
        pool.lease(HERE)
    assert not pool.lease(HERE).reused


def test_idle_and_resting_connections_are_kept_alive(fake_sink: FakeBroker, pool: Connections) -> None:
    pool.lease(HERE).give_back()
    resting = pool.lease(THERE)
    with resting.resting():
        wait_until(lambda: all(client.services >= 2 for client in fake_sink.clients), "both were looked after")
    used = fake_sink.clients[1].services
    wait_until(lambda: fake_sink.clients[0].services >= 5, "the idle one was looked after again")
    assert fake_sink.clients[1].services == used  # its task holds it


def test_a_task_that_comes_back_waits_for_the_thread_to_let_go(fake_sink: FakeBroker, pool: Connections) -> None:
    lease = pool.lease(HERE)
    entered, leave = threading.Event(), threading.Event()

    def slowly() -> None:
        entered.set()
        assert leave.wait(30)

    fake_sink.clients[0].on_service = slowly
    with lease.resting():
        assert entered.wait(30)
        threading.Timer(0.05, leave.set).start()
    assert leave.is_set()


def test_a_connection_that_breaks_under_a_resting_task_is_left_to_the_task(
    fake_sink: FakeBroker, pool: Connections
) -> None:
    lease = pool.lease(HERE)
    fake_sink.clients[0].error = ConnectionLost("cut")
    with lease.resting():
        wait_until(lambda: fake_sink.clients[0].services >= 2, "it was looked after")
    assert fake_sink.clients[0].ended == ""
    lease.abort()


def test_idle_connections_are_closed_in_order_after_a_while(fake_sink: FakeBroker) -> None:
    now = [0.0]
    others = _keepers()  # other tests of this process left connections that are kept for a while
    pool = Connections(fake_sink.connect, idle_seconds=30, clock=lambda: now[0])
    kept, idle, broken = (pool.lease(HERE) for _ in range(3))
    idle.give_back()
    broken.give_back()
    fake_sink.clients[2].error = ConnectionLost("cut")
    wait_until(lambda: fake_sink.clients[2].ended == "closed", "the broken one went at once")
    now[0] = 29.9
    seen = fake_sink.clients[1].services
    wait_until(lambda: fake_sink.clients[1].services > seen + 1, "the idle one was looked at")
    assert fake_sink.clients[1].ended == ""
    now[0] = 30.0
    wait_until(lambda: fake_sink.clients[1].ended == "closed", "the idle one was closed")
    assert (pool.idle_count, fake_sink.clients[0].ended) == (0, "")
    kept.abort()
    wait_until(lambda: _keepers() <= others, "the thread has nothing to do and ends")
    pool.lease(HERE).give_back()
    assert not _keepers() <= others
    pool.close()


def test_a_mistake_while_looking_after_one_does_not_harm_the_others(
    fake_sink: FakeBroker, pool: Connections, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ValueError("a mistake")

    good, bad = pool.lease(HERE), pool.lease(HERE)
    fake_sink.clients[1].on_service = fail
    good.give_back()
    bad.give_back()
    wait_until(lambda: fake_sink.clients[1].ended == "aborted", "the bad one was dropped")
    wait_until(lambda: fake_sink.clients[0].services > 3, "the good one was looked after")
    assert caplog.messages == ["looking after the connection to fake:5672 failed"]


def test_a_resting_task_does_not_go_on_with_a_connection_that_a_mistake_has_left_half_read(
    fake_sink: FakeBroker, pool: Connections
) -> None:
    def fail() -> None:
        raise MemoryError  # while a reject was read, for instance: it would be lost

    lease = pool.lease(HERE)
    fake_sink.clients[0].on_service = fail
    with lease.resting():
        wait_until(lambda: fake_sink.clients[0].services >= 1, "it was looked after")
    with pytest.raises(ConnectionLost):
        lease.client.query_queue("q")
    assert fake_sink.clients[0].ended == "aborted"
    lease.abort()


def test_closing_ends_idle_ones_in_order_and_drops_those_in_use(fake_sink: FakeBroker, pool: Connections) -> None:
    pool.lease(HERE).give_back()
    pool.lease(THERE)
    pool.close()
    assert [client.ended for client in fake_sink.clients] == ["closed", "aborted"]


def test_a_forked_child_has_its_own_and_leaves_the_parents_alone(fake_sink: FakeBroker, pool: Connections) -> None:
    kept, in_use = pool.lease(HERE), pool.lease(THERE)
    kept.give_back()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            ended = [client.ended for client in fake_sink.clients]
            mine = pool.lease(HERE)
            os.write(write, repr((ended, mine.reused, len(fake_sink.clients))).encode())
        finally:
            os._exit(0)
    os.close(write)
    assert os.waitpid(child, 0)[1] == 0
    told = os.read(read, 1000).decode()
    os.close(read)
    assert told == repr((["aborted", "aborted"], False, 3))
    assert [client.ended for client in fake_sink.clients] == ["", ""]
    assert pool.lease(HERE).client is kept.client
    in_use.abort()


def test_a_fork_that_python_did_not_see_is_noticed(
    fake_sink: FakeBroker, pool: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool.lease(HERE).give_back()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert not pool.lease(HERE).reused
    assert fake_sink.clients[0].ended == "aborted"


def test_the_sink_is_imported_where_there_are_no_forks() -> None:
    code = "import os; del os.fork, os.register_at_fork; import amqp_spark.sink; amqp_spark.sink.AmqpBatchSink"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_there_is_one_pool_per_process() -> None:
    assert connections.shared() is connections.shared()


def test_no_secret_is_shown(pool: Connections) -> None:
    assert "s3cret" not in repr(pool) + repr(pool.lease(HERE))


def _keepers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "amqp-connections"}
