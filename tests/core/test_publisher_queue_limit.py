"""Publishers and a queue with a limit as qpidd has it: completions are withheld above 80 %, 506 beyond 100 %."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from amqp_core.v0_10 import spec
from amqp_core.v0_10.publisher import Publisher
from tests.core.publisher_support import completed
from tests.support.fakepeer import QPIDD, FakePeer
from tests.support.runs import numbered

if TYPE_CHECKING:
    import pytest

    from tests.support.fakepeer import Peer

LIMIT = 100 << 20
BODY = 4096
PUBLISHERS = 4
MESSAGES = 3000
"""Of each publisher: all of them together do not fit."""
BEFORE = 70 << 20
"""Messages in the queue at the beginning."""
PART = 256 << 10
"""Messages that the slow consumer takes whenever a publisher has been silent for a moment."""


class Queue:
    """A queue of qpidd's, shared by connections; sizes in bytes."""

    def __init__(self) -> None:
        self.size = self.most = BEFORE
        self.stopped = False
        self.stops = 0
        self.resumed = 0
        """How many times the queue was resumed: what was withheld before is complete then."""
        self.done = threading.Event()
        self._lock = threading.Lock()

    def put(self, nbytes: int) -> int | None:
        """Enqueue; return the resumption that completes it, ``None``: at once.

        Raises:
            OverflowError: beyond the limit.
        """
        with self._lock:
            self.size += nbytes
            self.most = max(self.most, self.size)
            if self.size > LIMIT:
                raise OverflowError
            if not self.stopped and self.size > LIMIT * 0.8:
                self.stopped = True
                self.stops += 1
            return self.resumed + 1 if self.stopped else None

    def consume(self, nbytes: int) -> None:
        with self._lock:
            self.size = max(0, self.size - nbytes)
            if self.stopped and self.size <= LIMIT * 0.7:
                self.stopped = False
                self.resumed += 1


def qpidd(queue: Queue, peer: Peer) -> None:
    """Serve a publisher: say what is completed only when a sync asks and everything before it is complete."""
    due = 0
    syncs: list[tuple[int, int]] = []
    peer.completing = False

    def transferred(_: spec.MessageTransfer) -> None:
        nonlocal due
        due = max(due, queue.put(BODY) or 0)

    peer.hooks[spec.MessageTransfer] = transferred
    peer.hooks[spec.ExecutionSync] = lambda _: syncs.append((peer.session.received_next, due))
    peer.open()
    while not queue.done.is_set():
        try:
            heard = peer.hears(0.01)
        except OverflowError:
            peer.exception(506, peer.session.received_next, "queue is full")
            return
        except ConnectionError:
            return
        if not heard:
            queue.consume(PART)
        while syncs and syncs[0][1] <= queue.resumed:
            peer.control(completed((0, syncs.pop(0)[0])))


def test_a_slow_consumer_slows_publishers_down_and_the_queue_is_never_too_full() -> None:
    queue = Queue()
    with FakePeer(lambda peer: qpidd(queue, peer), server_properties=QPIDD) as server:

        def publish(_: int) -> int:
            publisher = server.connect().publisher()
            for first in range(0, MESSAGES, 100):
                publisher.send(numbered(100, first, size=BODY))
            publisher.finish()
            return publisher.completed.transfers

        try:
            with ThreadPoolExecutor(PUBLISHERS) as pool:
                assert list(pool.map(publish, range(PUBLISHERS))) == [MESSAGES] * PUBLISHERS
        finally:
            queue.done.set()
    assert queue.stops > 0
    assert LIMIT * 0.8 < queue.most <= LIMIT


def test_a_stop_shrinks_the_window() -> None:
    stopped = threading.Event()

    def script(peer: Peer) -> None:
        peer.open()
        peer.expect(spec.ExecutionSync)
        peer.send(spec.MessageStop(destination=""))
        peer.send(spec.MessageFlow(destination="", unit=spec.MessageCreditUnit.MESSAGE, value=0x7FFFFFFF))
        stopped.set()
        peer.serve()

    with FakePeer(script) as server:
        client = server.connect()
        before = client.publisher().window.nbytes
        client.sync()
        client.sync()
        assert stopped.is_set()
        publisher = client.publisher()
        assert publisher.window.nbytes < before
        publisher.send(numbered(100))
        publisher.finish()


def test_completions_that_do_not_come_are_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """qpidd says nothing else of a queue that is too full."""
    monkeypatch.setattr("amqp_core.v0_10.publisher._STOPPED_AFTER_S", 60.0)  # until the peer stops completing
    waiting, wait_for_room = threading.Event(), Publisher._wait_for_room

    def wait(publisher: Publisher, *arguments: Any) -> int:
        waiting.set()
        found = wait_for_room(publisher, *arguments)
        waiting.clear()
        return found

    monkeypatch.setattr(Publisher, "_wait_for_room", wait)

    def script(peer: Peer) -> None:
        peer.open()
        for _ in range(12):
            peer.expect(spec.ExecutionSync)
        peer.completing = False
        monkeypatch.setattr("amqp_core.v0_10.publisher._STOPPED_AFTER_S", 0.05)
        silences = 0
        while silences < 2:  # it has sent what the window allows, however busy this machine is
            silences = silences + 1 if not peer.hears(0.2) and waiting.is_set() else 0
        peer.completing = True
        peer.control(completed((0, peer.session.received_next - 1)))
        peer.serve()

    with FakePeer(script, server_properties=QPIDD) as server:
        publisher = server.connect().publisher()
        largest = 0
        for first in range(0, 40_000, 1000):
            publisher.send(numbered(1000, first))
            largest = max(largest, publisher.window.nbytes)
            if publisher.window.nbytes < largest:
                break
        assert publisher.window.nbytes < largest
        publisher.finish()
