"""How a consumer that browses or selects goes through a queue's messages: by itself, and not from head to head."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from amqp_core.broker.model.entries import READY

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.broker.model.backlog import Backlog
    from amqp_core.broker.model.consumers import Consumer
    from amqp_core.broker.model.entries import Entry

_SLACK = 64


class Walk:
    """The place of a consumer in a queue. It passes what its selector does not want, and what it is given.

    A message that comes back to a place behind that of the walk is met again by a consumer that takes messages: it may
    be the only one for it. One that browses sees each message at most once.
    """

    __slots__ = ("_backlog", "_returned", "_seen", "_wanted", "consumer")

    def __init__(self, consumer: Consumer, backlog: Backlog) -> None:
        self.consumer = consumer
        self._backlog = backlog
        self._seen: dict[int, int] = {}
        """The last sequence number that was passed, by priority of the message."""
        self._wanted: Entry | None = None
        """The entry that was found last: its message need not be looked at again."""
        self._returned: list[tuple[int, int, Entry]] = []
        """A heap of what came back: negative priority, sequence number."""

    def next(self) -> Entry | None:
        """The next entry that the consumer wants, until ``passed``."""
        unseen = self._unseen()
        returned = self._returned
        while returned and returned[0][2].state != READY:
            heapq.heappop(returned)
        if returned and (unseen is None or returned[0] < self._place(unseen)):
            return returned[0][2]
        return unseen

    def passed(self, entry: Entry) -> None:
        """Go on behind the entry that is the next one."""
        if self._returned and self._returned[0][2] is entry:
            heapq.heappop(self._returned)
        else:
            self._pass(entry)

    def came_back(self, entry: Entry) -> None:
        """An entry waits again at its place; if that was passed and the entry is wanted it is a next one again."""
        if entry.sequence > self._seen.get(self._backlog.priority_of(entry), 0):
            return
        if self.consumer.browse or not self.consumer.wants(entry.message):
            return
        heapq.heappush(self._returned, self._place(entry))
        if len(self._returned) > 2 * self._backlog.count + _SLACK:  # others may take what came back
            waiting = {place[1]: place for place in self._returned if place[2].state == READY}
            self._returned = sorted(waiting.values())

    def _unseen(self) -> Entry | None:
        entry = self._backlog.behind(self._seen)
        if entry is None or entry is self._wanted:
            return entry
        wants = self.consumer.wants
        if wants(entry.message):
            self._wanted = entry
            return entry
        self._pass(entry)
        for each in self._backlog.all_behind(self._seen):
            if wants(each.message):
                self._wanted = each
                return each
            self._pass(each)
        return None

    def _pass(self, entry: Entry) -> None:
        self._seen[self._backlog.priority_of(entry)] = entry.sequence

    def _place(self, entry: Entry) -> tuple[int, int, Entry]:
        return -self._backlog.priority_of(entry), entry.sequence, entry


class Walks:
    """All walks of a queue: those that browse first, which see what the others take, then by priority.

    Args:
        backlog: what waits.
        take: gives a waiting entry, which it removes, to a consumer.
    """

    __slots__ = ("_backlog", "_take", "places")

    def __init__(self, backlog: Backlog, take: Callable[[Entry, Consumer], None]) -> None:
        self._backlog = backlog
        self._take = take
        self.places: list[Walk] = []

    def add(self, consumer: Consumer) -> None:
        """Begin a walk at the head."""
        self._go_last([Walk(consumer, self._backlog)])

    def remove(self, consumer: Consumer) -> None:
        """End the walk of a consumer."""
        self.places = [walk for walk in self.places if walk.consumer is not consumer]

    def came_back(self, entry: Entry) -> None:
        """An entry waits again at its place."""
        for walk in self.places:
            walk.came_back(entry)

    def go_on(self, now: float, fresh: Entry | None = None) -> None:
        """Deliver what waits while the consumers have room; a ``fresh`` entry also if it has no time to live."""
        while took := [walk for walk in self.places if self._go(walk, now, fresh)]:
            if len(self.places) == 1:
                return
            self._go_last(took)  # those that select the same take turns
            # Again, since one may have waited for room for what another has taken.

    def _go(self, walk: Walk, now: float, fresh: Entry | None) -> bool:
        """Deliver to one consumer; return whether it has taken anything."""
        consumer = walk.consumer
        taken = False
        while (entry := walk.next()) is not None:
            over = entry.expires is not None and entry.expires <= now and entry is not fresh
            if not over and not consumer.receiver.has_room(entry.message.size):
                break
            walk.passed(entry)
            if over:
                continue
            if consumer.browse:
                consumer.receiver.deliver(entry)
            else:
                self._take(entry, consumer)
                taken = True
        return taken

    def _go_last(self, walks: list[Walk]) -> None:
        if walks:
            self.places = [*(walk for walk in self.places if walk not in walks), *walks]
            self.places.sort(key=_order)


def _order(walk: Walk) -> tuple[bool, int]:
    return not walk.consumer.browse, -walk.consumer.priority
