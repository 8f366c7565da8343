"""A consumer of the fake broker."""

from __future__ import annotations

import itertools
import time
from collections import deque
from typing import TYPE_CHECKING

from tests.support.fake_broker.messages import FakeBlock, FakeMessage, Received, transfer_frames
from tests.support.fake_broker.names import MARKERS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from amqp_core.api import Block
    from tests.support.fake_broker.client import FakeClient


class FakeSubscription:
    """See :class:`amqp_core.api.Subscription`."""

    def __init__(self, client: FakeClient, queue: str, *, accept: bool, acquire: bool) -> None:
        self.client = client
        self.queue = queue
        self.accept = accept
        self.acquire = acquire
        self.credit = 0
        self.bytes = float("inf")
        self.granted: list[int] = []
        self.cursor = 0
        self.ready: list[FakeBlock] = []
        self.most: float | None = None
        """The limit of unsettled messages, if there is no credit."""
        self.under_way = 0
        """Messages that the broker has sent before a stop, and that have not arrived."""
        self.admits: Callable[[int, int, int], bool] | None = None
        self.dropped: Callable[[Block], None] | None = None
        self.overflowed = False

    def bound(self, admits: Callable[[int, int, int], bool], dropped: Callable[[Block], None] | None = None) -> None:
        self.admits, self.dropped = admits, dropped

    def drop_without_room(self) -> None:
        """Drop the latest block if it has no room, or one before had none."""
        count, nbytes = sum(len(each.ends) for each in self.ready), sum(len(each.frames) for each in self.ready)
        if self.overflowed or (self.admits is not None and not self.admits(count, nbytes, 0)):
            self.overflowed = True
            blocks, self.ready = self.ready, []
            if self.dropped is not None:
                for each in blocks:
                    self.dropped(each)

    def limit(self, most: int | None) -> None:
        """Let messages come without credit, at most so many unsettled ones."""
        self.most = float("inf") if most is None else most

    @property
    def credit_bytes(self) -> float:
        return self.bytes if self.credit else 0.0

    def grant(self, messages: int) -> None:
        assert self.most is None
        self.client.command("grant")
        self.credit += messages

    def renew(self, messages: int, nbytes: int | None = None) -> None:
        with self.client.broker.changed:
            assert self.most is None
            self.client.command("grant" if messages else "stop")
            self.credit = messages
            self.bytes = float("inf") if nbytes is None else nbytes
            self.granted.append(messages)
            self.client.broker.changed.notify_all()

    def take_blocks(self, timeout: float, *, begun: bool = False) -> list[FakeBlock]:
        broker, client = self.client.broker, self.client
        deadline = time.monotonic() + timeout
        with broker.changed:
            while True:
                if broker.cancels:
                    raise broker.cancels.pop(0)
                if not client.paused and not client.error:
                    self._send(broker.block_messages)
                if self.ready:
                    broker.changed.notify_all()
                    return self.take_arrived()
                client.check()
                left = deadline - time.monotonic()
                if client.woken or left <= 0:
                    client.woken = False
                    return []
                broker.changed.wait(left)

    def take_arrived(self) -> list[FakeBlock]:
        with self.client.broker.changed:
            blocks, self.ready = self.ready, []
            return blocks

    def take_one(self, *, timeout: float) -> Received | None:
        broker = self.client.broker
        with broker.changed:
            self.client.check()
            if self.acquire:
                self.client.check_lock(self.queue)
            found = self._next(min(1, self.credit))
            if not found and timeout and self.credit:
                broker.calls.append("wait")
                broker.waits.append(timeout)
                broker.on_wait()
                found = self._next(1)
            if not found:
                return None
            self.credit -= 1
            return Received(found[0].body, self._deliver(found))

    def flush(self) -> None:
        """Messages are received by the calls that follow, as long as there is credit."""
        assert self.most is None
        self.client.command("flush")

    def probe(self) -> None:
        with self.client.broker.changed:
            assert self.most is None
            self.client.command("flush")
            self.credit, self.bytes = 1, float("inf")
            if self.client.broker.early_flushes > 0:
                self.client.broker.early_flushes -= 1
            else:
                self._send(1)
            self.credit = 0

    def cancel(self) -> None:
        if self.queue.startswith(MARKERS):
            self.client.call("close")
        self.credit = 0

    def cease(self) -> None:
        """What is under way comes first."""
        with self.client.broker.changed:
            self.client.command("cancel")
            self.under_way = min(self._room(), len(self.client.broker.queues.get(self.queue, ())))
            self.most = 0

    @property
    def ceased(self) -> bool:
        return self.most == 0 and self.under_way == 0

    def _room(self) -> int:
        """Messages that the limit of unsettled ones allows now."""
        assert self.most is not None
        stalled = self.client.broker.stalls[self.queue] > 0
        most = min(self.most, self.client.broker.cap)
        return 0 if stalled else max(0, int(min(most - len(self.client.held), 1 << 30)))

    def send_block(self) -> bool:
        """Send a block of messages, if there are any and they may be sent."""
        return self._send(self.client.broker.block_messages)

    def _send(self, most: int) -> bool:
        if self.most is not None:
            self.credit = self.under_way if self.most == 0 else self._room()
        messages = self._next(min(most, self.credit))
        if not messages:
            self.under_way = 0
            return False
        self.under_way = max(0, self.under_way - len(messages))
        frames, ends, largest = b"", [], 0
        for message in messages:
            raw = transfer_frames(message.body, redelivered=message.redelivered)
            frames += raw
            ends.append(len(frames))
            largest = max(largest, len(raw))
        self.credit -= len(messages)
        self.ready.append(FakeBlock(frames, ends, self._deliver(messages), largest))
        self.bytes -= sum(len(message.body) for message in messages)
        return True

    def _deliver(self, messages: Sequence[FakeMessage]) -> int:
        """Number messages; return the id of the first."""
        first = self.client.next_id
        if self.accept and self.acquire:
            self.client.held.update(enumerate(((self.queue, message) for message in messages), first))
        self.client.next_id += len(messages)
        return first

    def _next(self, count: int) -> list[FakeMessage]:
        """Messages within the credit: a message larger than the rest of the bytes waits for a new credit."""
        queue = self.client.broker.queues.get(self.queue, deque())
        waiting = itertools.islice(queue, 0 if self.acquire else self.cursor, None)
        found: list[FakeMessage] = []
        room = self.bytes
        for message in itertools.islice(waiting, count):
            room -= len(message.body)  # Broker-J counts bodies only
            if room < 0:
                break
            found.append(message)
        if self.acquire:
            for _ in found:
                queue.popleft()
        else:
            self.cursor += len(found)
        return found
