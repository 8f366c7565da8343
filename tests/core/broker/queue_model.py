"""What queues of the embedded broker do with their messages, in the plainest words: the model of random histories.

It has no selectors, no store, and no memory limit. Consumers are asked with ``has_room`` and given with ``deliver``.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(eq=False)
class Item:
    """A message in one queue.

    ``size`` is what it needs of a credit, ``sent`` what it takes, and ``dead`` what it takes as a dead letter.
    """

    number: int
    queue: Queue
    sequence: int
    priority: int
    size: int
    sent: int
    dead: int
    body: int
    expires: float | None
    returns: int = 0
    state: str = "ready"

    @property
    def place(self) -> tuple[int, int]:
        return -self.queue.level(self.priority), self.sequence


class Consumer(Protocol):
    """A consumer; ``rank`` is its priority."""

    rank: int
    browse: bool
    seen: dict[int, int]

    @property
    def no_ack(self) -> bool:
        """Whether what it gets is settled."""

    def has_room(self, size: int) -> bool:
        """Whether it can get one more."""

    def deliver(self, item: Item) -> None:
        """Get a message."""

    def cancelled(self) -> None:
        """Its queue was deleted."""


@dataclass(eq=False)
class Queue:
    """A queue. Its ``policy`` is empty, or reject, ring, or flow."""

    name: str
    host: Host
    limit: float = math.inf
    most_bytes: float = math.inf
    policy: str = ""
    levels: int = 0
    single: bool = False
    deliveries: float = math.inf
    alternate: bool = True
    owner: object = None
    auto_delete: bool = False
    waiting: list[Item] = field(default_factory=list)
    held: int = 0
    turns: deque[Consumer] = field(default_factory=deque)
    turn: Consumer | None = None
    browsers: list[Consumer] = field(default_factory=list)
    sequence: int = 0
    deleted: bool = False
    choked: bool = False

    def level(self, priority: int) -> int:
        return min(priority, max(self.levels - 1, 0))

    @property
    def nbytes(self) -> int:
        return sum(item.body for item in self.waiting)

    def is_over(self, count: int, nbytes: int) -> bool:
        return count > self.limit or nbytes > self.most_bytes

    @property
    def holds(self) -> bool:
        resume = self.limit if self.limit == math.inf else int(self.limit * 0.8)
        if self.choked and (self.deleted or len(self.waiting) <= resume):
            self.choked = False
        return self.choked

    # --- its consumers

    @property
    def consumers(self) -> list[Consumer]:
        return [*sorted(self.turns, key=lambda each: -each.rank), *self.browsers]

    def attach(self, consumer: Consumer) -> None:
        if consumer.browse:
            self.browsers.append(consumer)
            self.browsers.sort(key=lambda each: -each.rank)
            return
        self.turns.append(consumer)
        self._choose()

    def detach(self, consumer: Consumer) -> None:
        self.browsers = [each for each in self.browsers if each is not consumer]
        self.turns = deque(each for each in self.turns if each is not consumer)
        if self.turn is consumer:
            self.turn = None
        self._choose()

    def _choose(self) -> None:
        if self.single and self.turn is None and self.turns:
            self.turn = max(self.turns, key=lambda each: each.rank)

    def next(self, size: int) -> Consumer | None:
        """Whose turn it is. It is the last of its rank then, and whoever had no room is before it."""
        if self.single:
            return self.turn if self.turn is not None and self.turn.has_room(size) else None
        for rank in sorted({each.rank for each in self.turns}, reverse=True):
            for consumer in [each for each in self.turns if each.rank == rank]:
                self.turns.remove(consumer)
                self.turns.append(consumer)
                if consumer.has_room(size):
                    return consumer
        return None

    @property
    def takers(self) -> list[Consumer]:
        if self.waiting:
            return []
        if self.single:
            return [] if self.turn is None else [self.turn]
        return list(self.turns)

    # --- its messages

    def put(self, item: Item) -> bool:
        if self.policy == "reject" and self.is_over(len(self.waiting) + 1, self.nbytes + item.body):
            self.expire()
            if self.is_over(len(self.waiting) + 1, self.nbytes + item.body):
                return False
        self.admit(item)
        return True

    def admit(self, item: Item) -> None:
        self.sequence += 1
        item.sequence = self.sequence
        self.insert(item)
        self.browse(item)
        if self.waiting[0] is item:
            consumer = self.next(item.size)
            if consumer is not None:
                self.hand_over(item, consumer)
                return
        if item.expires is not None and item.expires <= self.host.now:
            self.expire()
        self.trim()
        if self.policy == "flow" and len(self.waiting) >= self.limit:
            self.choked = True

    def insert(self, item: Item) -> None:
        item.state = "ready"
        self.waiting.append(item)
        self.waiting.sort(key=lambda each: each.place)

    def hand_over(self, item: Item, consumer: Consumer) -> None:
        self.waiting.remove(item)
        item.state = "gone" if consumer.no_ack else "held"
        self.held += not consumer.no_ack
        consumer.deliver(item)

    def offer(self) -> None:
        while True:
            self.browse()
            if not self.dispatch() or not self.browsers:
                return

    def browse(self, fresh: Item | None = None) -> None:
        for consumer in self.browsers:
            for item in self.waiting:
                level = self.level(item.priority)
                if item.sequence <= consumer.seen.get(level, 0):
                    continue
                over = self.is_late(item) and item is not fresh
                if not over and not consumer.has_room(item.size):
                    break
                consumer.seen[level] = item.sequence
                if not over:
                    consumer.deliver(item)

    def is_late(self, item: Item) -> bool:
        return item.expires is not None and item.expires <= self.host.now

    def dispatch(self) -> bool:
        gone = False
        while self.waiting:
            item = self.waiting[0]
            if self.is_late(item):
                self.give_up(item)
            else:
                consumer = self.next(item.size)
                if consumer is None:
                    break
                self.hand_over(item, consumer)
            gone = True
        return gone

    def give_up(self, item: Item) -> None:
        self.waiting.remove(item)
        item.state = "gone"
        self.host.bury(item)

    def expire(self) -> None:
        due = sorted((item for item in self.waiting if self.is_late(item)), key=lambda each: each.sequence)
        for item in due:
            self.give_up(item)
        if due:
            self.offer()

    def trim(self) -> None:
        trimmed = False
        while self.policy == "ring" and self.waiting and self.is_over(len(self.waiting), self.nbytes):
            lowest = max(item.place[0] for item in self.waiting)
            self.give_up(next(item for item in self.waiting if item.place[0] == lowest))
            trimmed = True
        if trimmed:
            self.offer()

    def acquire(self, item: Item) -> bool:
        if item.state != "ready" or self.is_late(item):
            return False
        self.waiting.remove(item)
        item.state = "held"
        self.held += 1
        self.offer()
        return True

    def settle(self, item: Item) -> bool:
        if item.state != "held":
            return False
        item.state = "gone"
        self.held -= 1
        return True

    def reject(self, item: Item) -> None:
        if self.settle(item):
            self.host.bury(item)

    def take_back(self, items: list[Item], *, delivered: bool) -> None:
        items = sorted(items, key=lambda each: each.sequence)
        if self.deleted:
            for item in items:
                self.reject(item)
            return
        for item in items:
            if item.state != "held":
                continue
            self.held -= 1
            item.returns += delivered
            if item.returns >= self.deliveries:
                item.state = "gone"
                self.host.bury(item)
            else:
                self.insert(item)
        self.offer()
        self.trim()


class Host:
    """The queues; what they give up goes to the queue ``dead`` by ``drain``."""

    def __init__(self) -> None:
        self.now = 0.0
        self.queues: dict[str, Queue] = {}
        self.fanout: dict[Queue, None] = {}
        self.dying: list[Item] = []

    def bury(self, item: Item) -> None:
        if item.queue.alternate:
            self.dying.append(item)

    def drain(self) -> None:
        while self.dying:
            item = self.dying.pop(0)
            dead = self.queues["dead"]
            dead.put(Item(item.number, dead, 0, item.priority, item.size, item.dead, item.dead, item.body, None))

    def release(self, items: list[Item], *, delivered: bool = True) -> None:
        by_queue: dict[Queue, list[Item]] = {}
        for item in items:
            by_queue.setdefault(item.queue, []).append(item)
        for queue, its in by_queue.items():
            queue.take_back(its, delivered=delivered)
        self.drain()

    def reject(self, items: list[Item]) -> None:
        for item in items:
            item.queue.reject(item)
        self.drain()

    def accept(self, items: list[Item]) -> None:
        for item in items:
            item.queue.settle(item)

    def ready(self, queue: Queue) -> None:
        queue.offer()
        self.drain()

    def cancel(self, consumer: Consumer, queue: Queue) -> None:
        if queue.deleted:
            return
        queue.detach(consumer)
        if queue.auto_delete and not queue.consumers:
            self.delete(queue)
        else:
            self.ready(queue)

    def delete(self, queue: Queue) -> None:
        del self.queues[queue.name]
        self.fanout.pop(queue, None)
        queue.deleted = True
        items, queue.waiting = queue.waiting, []
        for item in items:
            item.state = "gone"
            self.bury(item)
        for consumer in queue.consumers:
            queue.detach(consumer)
            consumer.cancelled()
        self.drain()
