"""How a consumer that browses or selects goes through a queue's messages: by itself, and not from head to head."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

from amqp_core.broker.model.entries import READY

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.broker.model.backlog import Backlog
    from amqp_core.broker.model.consumers import Consumer
    from amqp_core.broker.model.effort import Effort
    from amqp_core.broker.model.entries import Entry

MOST_SELECTORS: Final = 1000
"""Consumers of one queue that have a selector: each message costs 15 ms of search with so many (measured)."""
_SLACK: Final = 64


class Walk:
    """The place of a consumer in a queue. It passes what its selector does not want, and what it is given.

    A message that comes back to a place behind that of the walk is met again by a consumer that takes messages: it may
    be the only one for it. One that browses sees each message at most once.

    Args:
        backlog: what waits.
        effort: is asked before the selector is.
    """

    __slots__ = ("_backlog", "_effort", "_returned", "_seen", "_wanted", "consumer", "is_unfinished")

    def __init__(self, consumer: Consumer, backlog: Backlog, effort: Effort) -> None:
        self.consumer = consumer
        self.is_unfinished = False
        """Whether it goes on in the next turn: ``next`` found nothing, or was not called, since the turn is over."""
        self._backlog = backlog
        self._effort = effort
        self._seen: dict[int, int] = {}
        """The last sequence number that was passed, by priority of the message."""
        self._wanted: Entry | None = None
        """The entry that was found last: its message need not be looked at again."""
        self._returned: list[tuple[tuple[int, int], Entry]] = []
        """A heap of what came back, by place. It is looked at when its turn comes."""

    def next(self) -> Entry | None:
        """The next entry that the consumer wants, until ``passed``; None: there is none, or the turn is over."""
        self.is_unfinished = False
        return self._search()

    def passed(self, entry: Entry) -> None:
        """Go on behind the entry that is the next one."""
        if self._returned and self._returned[0][1] is entry:
            heapq.heappop(self._returned)
        else:
            self._pass(entry)

    def came_back(self, entry: Entry) -> None:
        """An entry waits again at its place; if that was passed it is met again."""
        if self.consumer.browse or entry.sequence > self._seen.get(self._backlog.priority_of(entry), 0):
            return
        heapq.heappush(self._returned, (self._backlog.place(entry), entry))
        if len(self._returned) > 2 * self._backlog.count + _SLACK:  # others may take what came back
            waiting = {place[1]: (place, each) for place, each in self._returned if each.state == READY}
            self._returned = sorted(waiting.values())

    def place(self) -> tuple[int, int] | None:
        """The place where it goes on; None: it is at the end."""
        unseen = self._backlog.behind(self._seen)
        places = [] if unseen is None else [self._backlog.place(unseen)]
        if self._first_returned() is not None:
            places.append(self._returned[0][0])
        return min(places, default=None)

    def _search(self) -> Entry | None:
        while True:
            returned = self._first_returned()
            if returned is None:
                return self._unseen(None)
            found = self._unseen(self._returned[0][0])
            if found is not None or self.is_unfinished:
                return found
            wanted = self._wants(returned)
            if wanted is not False:
                return returned if wanted else None
            heapq.heappop(self._returned)

    def _first_returned(self) -> Entry | None:
        returned = self._returned
        while returned and returned[0][1].state != READY:
            heapq.heappop(returned)
        return returned[0][1] if returned else None

    def _unseen(self, before: tuple[int, int] | None) -> Entry | None:
        """The first entry that is wanted of those that were not passed, and come before a place."""
        entry = self._backlog.behind(self._seen)
        if entry is None:
            return None
        for each in (entry,) if entry is self._wanted else self._backlog.all_behind(self._seen):
            if before is not None and self._backlog.place(each) > before:
                return None
            wanted = self._wants(each)
            if wanted is not False:
                return each if wanted else None
            self._pass(each)
        return None

    def _wants(self, entry: Entry) -> bool | None:
        """Whether the consumer wants an entry; None: it is not known, since the turn is over."""
        consumer = self.consumer
        if consumer.selector is None or entry is self._wanted:
            return True
        if not self._effort.make(consumer.effort(entry.message), consumer.queue):
            self.is_unfinished = True
            return None
        if not consumer.wants(entry.message):
            return False
        self._wanted = entry
        return True

    def _pass(self, entry: Entry) -> None:
        self._seen[self._backlog.priority_of(entry)] = entry.sequence


class Walks:
    """All walks of a queue: those that browse first, which see what the others take, then by priority.

    Args:
        backlog: what waits.
        take: gives a waiting entry, which it removes, to a consumer.
        effort: of their selectors.
    """

    __slots__ = ("_backlog", "_effort", "_take", "places")

    def __init__(self, backlog: Backlog, take: Callable[[Entry, Consumer], None], effort: Effort) -> None:
        self._backlog = backlog
        self._take = take
        self._effort = effort
        self.places: list[Walk] = []

    @property
    def is_unfinished(self) -> bool:
        """Whether a walk goes on in the next turn."""
        return any(walk.is_unfinished for walk in self.places)

    def add(self, consumer: Consumer) -> None:
        """Begin a walk at the head."""
        self._go_last([Walk(consumer, self._backlog, self._effort)])

    def remove(self, consumer: Consumer) -> None:
        """End the walk of a consumer."""
        self.places = [walk for walk in self.places if walk.consumer is not consumer]

    def came_back(self, entry: Entry) -> None:
        """An entry waits again at its place."""
        for walk in self.places:
            walk.came_back(entry)

    def place(self) -> tuple[int, int] | None:
        """What is at this place or behind it waits for a walk that goes on in the next turn; None: nothing does."""
        places = [walk.place() for walk in self.places if walk.is_unfinished]
        return min((place for place in places if place is not None), default=None)

    def go_on(self, now: float, fresh: Entry | None = None) -> None:
        """Deliver what waits while the consumers have room; a ``fresh`` entry also if it has no time to live."""
        while took := self._round(now, fresh):
            if len(self.places) == 1:
                return
            self._go_last(took)  # those that select the same take turns
            # Again, since one may have waited for room for what another has taken.

    def _round(self, now: float, fresh: Entry | None) -> list[Walk]:
        """Deliver to one after the other; return those that have taken anything."""
        took = []
        for place, walk in enumerate(self.places):
            if self._go(walk, now, fresh):
                took.append(walk)
            if walk.is_unfinished:
                for other in self.places[place:]:  # they must not take what it may want
                    other.is_unfinished = True
                break
        return took

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
            last = set(walks)
            self.places = [*(walk for walk in self.places if walk not in last), *walks]
            self.places.sort(key=_order)


def _order(walk: Walk) -> tuple[bool, int]:
    return not walk.consumer.browse, -walk.consumer.priority
