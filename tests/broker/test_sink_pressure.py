"""A broker that takes no more: the write waits for it, in bounded memory, or says why it cannot go on."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import psutil
import pytest
from pyspark import InheritableThread
from pyspark.errors import PythonException

from tests.broker.sink_scenarios import Target, duplicates, first_rows_and_then, rows, taken
from tests.broker.stream_support import depth
from tests.support.capabilities import needs
from tests.support.choice import all_cases
from tests.support.dial import address, by_way_of
from tests.support.process import wait_until
from tests.support.proxy import FaultProxy
from tests.support.taking import take

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.fixtures import Broker, Connect, OwnBroker

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(300)]

STOPPED_S = 20 if all_cases() else 8
BIG = 8192
MANY = 12_000
"""Rows of ``BIG`` bytes: 100 MB, three times what may be in flight."""
MOST_MB = 150
"""How much a worker may grow while its broker takes nothing: in flight, in Spark's batch, and encoded."""


class Writing:
    """A write in the background."""

    def __init__(self, write: Callable[[], None]) -> None:
        self.error: BaseException | None = None
        self._write = write
        self._thread = InheritableThread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._write()
        except BaseException as error:  # noqa: BLE001 - raised where the test waits
            self.error = error

    @property
    def running(self) -> bool:
        return bool(self._thread.is_alive())

    def wait(self, timeout_s: float = 120) -> None:
        """Wait for its end; raises why it failed."""
        self._thread.join(timeout_s)
        assert not self.running, "the write does not end"
        if self.error is not None:
            raise self.error


def worker_memory() -> dict[int, int]:
    """Resident bytes of every Python worker of Spark below this process."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        try:
            if "pyspark.daemon" in " ".join(process.cmdline()):
                found[process.pid] = process.memory_info().rss
        except psutil.Error:
            continue
    return found


@pytest.mark.thorough
@pytest.mark.usefixtures("small_batches")
def test_a_broker_that_reads_nothing_for_a_while_slows_the_task_down_and_memory_stays_bounded(
    spark: SparkSession, broker: Broker, own_broker: OwnBroker, connect: Connect, queue: str, tmp_path: Path
) -> None:
    """Two at once: a broker that is frozen, and a network that passes nothing on to another one."""
    ours = own_broker(durable=False)
    connect(broker=ours).declare_queue(queue)
    gate = tmp_path / "gate"
    with FaultProxy(address(broker), record=False) as proxy:
        sinks = [
            Target(ours, queue).sink(deliveryMode="non-persistent"),
            Target(broker, queue).sink(deliveryMode="non-persistent", url=by_way_of(proxy.port, broker.url())),
        ]
        frame = rows(spark, MANY, size=BIG).mapInArrow(first_rows_and_then(gate, ""), "body STRING")
        writes = [Writing(partial(sink, frame, 0)) for sink in sinks]
        try:
            for client in (connect(broker=ours), connect()):
                wait_until(partial(depth, client, queue), "the first rows", 60)
            before = max(worker_memory().values())
            ours.pause()
            proxy.to_broker.stall()
            gate.touch()
            started, most = time.monotonic(), 0
            while time.monotonic() < started + STOPPED_S:
                assert all(write.running for write in writes), "a write has ended although no consumer read it"
                most = max(most, *worker_memory().values())
                time.sleep(0.2)
        finally:
            gate.touch()
            ours.resume()
            proxy.resume()
        for write in writes:
            write.wait()
    assert [(sink.last.messages, sink.last.retries) for sink in sinks] == [(MANY, 0), (MANY, 0)]
    assert most, "no worker was seen while its broker took nothing"
    assert (most - before) / 2**20 <= MOST_MB
    assert duplicates(taken(connect(broker=ours), queue), MANY) == 0
    assert duplicates(taken(connect(), queue), MANY) == 0


# --------------------------------------------------------------------------------------------------------- full queues
LIMIT = 100
ASK_AGAIN_S = 1
MOST_ASKED = 2
"""Messages on one new connection, before the broker's stop is read."""
ROOM = 1000


@needs("rejects_overflow")
@pytest.mark.parametrize(
    ("on_unroutable", "message"),
    [
        ("fail", "{over} message.*row {limit} of partition 0.*'{queue}'.*or a queue is full"),
        ("discard", "refused with 506: .*Maximum depth exceeded on '{queue}'"),
    ],
)
def test_a_queue_that_is_full_and_rejects_fails_the_write(
    spark: SparkSession,
    broker: Broker,
    connect: Connect,
    fresh_names: Iterator[str],
    on_unroutable: str,
    message: str,
) -> None:
    """Broker-J rejects with the code of what it cannot route; that may be discarded, and this may not."""
    client, queue = connect(), next(fresh_names)
    client.declare_queue(queue, arguments={"qpid.max_count": LIMIT, "qpid.policy_type": "reject"})
    sink = Target(broker, queue).sink(onUnroutable=on_unroutable)
    with pytest.raises(PythonException, match=message.format(over=ROOM - LIMIT, limit=LIMIT, queue=queue)):
        sink(rows(spark, ROOM), 0)
    assert taken(client, queue) == dict.fromkeys(range(LIMIT), 1)


@pytest.mark.thorough
@needs("stops_producers")
def test_a_queue_that_is_full_for_a_while_takes_everything_in_the_end(
    spark: SparkSession, broker: Broker, connect: Connect, fresh_names: Iterator[str]
) -> None:
    """Producer flow control: Broker-J tells the producer to stop, and to go on when a consumer has made room.

    It may forget the latter, so that the task asks again on a new connection: with two messages at most.
    """
    client, queue = connect(heartbeat=0), next(fresh_names)
    client.declare_queue(queue, arguments={"qpid.max_count": LIMIT, "qpid.policy_type": "producer_flow_control"})
    sink = Target(broker, queue).sink(maxInFlight=LIMIT, blockedTimeout=ASK_AGAIN_S)
    writing = Writing(partial(sink, rows(spark, ROOM), 0))
    wait_until(lambda: depth(client, queue) > LIMIT, "a full queue", 60)
    time.sleep(ASK_AGAIN_S / 2)  # what was in flight arrives
    full = depth(client, queue)
    wait_until(lambda: depth(client, queue) >= full + 3 or not writing.running, "messages on new connections", 60)
    assert writing.running
    assert depth(client, queue) <= full + 3 + MOST_ASKED
    subscription = client.subscribe(queue)
    found: list[int] = []
    while len(found) < ROOM:
        subscription.grant(50)
        messages = take(subscription, 50)
        ids = [message.command_id for message in messages if message.command_id is not None]
        client.accept([(ids[0], ids[-1])], sync=True)
        found += [int(message.body) for message in messages]
    writing.wait()
    assert sink.last.retries >= 2
    assert sink.last.resent == 0
    assert sorted(found) == list(range(ROOM))
