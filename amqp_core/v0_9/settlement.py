"""Which basic.ack, basic.nack or basic.reject settles ranges of delivery tags. No I/O.

A delivery tag settles every unsettled delivery up to it if ``multiple`` is set (0-9-1 section basic.ack). RabbitMQ
closes the channel when a tag is unknown or settled already, so that only unsettled tags may be sent. ``multiple`` would
settle deliveries with lower tags, too, that have not arrived: where a broker sends them late, or a proxy lets clients
share a channel. So it is used only up to the first tag that is missing; brokers that are known leave none out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from amqp_core.sequence_numbers import RangeSet

if TYPE_CHECKING:
    from collections.abc import Sequence


# So many ranges of missing tags are told apart; of more, all between them count as missing. With the brokers that are
# known there is one at most, for a moment: a basic.get-ok is recorded after the deliveries that came right behind it.
_MOST_GAPS: Final = 8


class Settlement(NamedTuple):
    """One settlement: the delivery tag, and whether it settles all unsettled deliveries up to it."""

    tag: int
    multiple: bool


class Unsettled:
    """The deliveries of one channel that are not settled. Not thread-safe."""

    def __init__(self) -> None:
        self._tags = RangeSet()
        self._highest = 0  # of all tags so far
        self._missing = RangeSet()  # tags below it that were not seen, or are taken for such
        self._undecided: RangeSet | None = None

    def begin(self) -> None:
        """Remember from now on what is settled, until :meth:`commit` or :meth:`roll_back`."""
        self._undecided = RangeSet()

    def commit(self) -> None:
        """What was settled stays so."""
        self._undecided = RangeSet()

    def roll_back(self) -> None:
        """What was settled since the last commit is not."""
        for low, high in [] if self._undecided is None else self._undecided.ranges():
            self._tags.add(low, high)
        self._undecided = RangeSet()

    def arrived(self, first: int, count: int) -> None:
        """Record ``count`` deliveries from tag ``first`` on, which must be settled."""
        self._tags.add(first, first + count - 1)
        self.passed(first, count)

    def passed(self, first: int, count: int) -> None:
        """Record ``count`` deliveries from tag ``first`` on, which need not be settled."""
        last = first + count - 1
        missing = self._missing
        if first > self._highest + 1:
            missing.add(self._highest + 1, first - 1)
        elif missing:
            missing.discard(first, last)
        self._highest = max(self._highest, last)
        if missing and len(gaps := missing.ranges()) > _MOST_GAPS:
            missing.add(gaps[0][0], gaps[-1][1])

    def count(self) -> int:
        """Return the number of unsettled deliveries."""
        return self._tags.count()

    def __contains__(self, tag: int) -> bool:
        return tag in self._tags

    def settle(self, ranges: Sequence[tuple[int, int]]) -> list[Settlement]:
        """Mark inclusive ranges of tags as settled; return the fewest settlements that settle exactly those.

        Tags that are settled already, or never arrived, are left out.
        """
        wanted = self._unsettled_of(ranges)
        up_to = self._settled_prefix(wanted)
        found = [] if up_to is None else [Settlement(up_to, multiple=True)]
        for low, high in wanted.ranges():
            self._settled(low, high)
            first = low if up_to is None else max(low, up_to + 1)
            found += [Settlement(tag, multiple=False) for tag in range(first, high + 1)]
        return found

    def take(self, ranges: Sequence[tuple[int, int]]) -> list[int]:
        """Mark inclusive ranges of tags as settled; return those that were not, in ascending order."""
        wanted = self._unsettled_of(ranges)
        for low, high in wanted.ranges():
            self._settled(low, high)
        return list(wanted)

    def _settled(self, low: int, high: int) -> None:
        self._tags.discard(low, high)
        if self._undecided is not None:
            self._undecided.add(low, high)

    def _unsettled_of(self, ranges: Sequence[tuple[int, int]]) -> RangeSet:
        wanted = RangeSet()
        for low, high in ranges:
            for start, end in self._tags.within(low, high):
                wanted.add(start, end)
        return wanted

    def _settled_prefix(self, wanted: RangeSet) -> int | None:
        """Greatest wanted tag up to which every tag has arrived, and every unsettled one is wanted; ``None``: none."""
        up_to, missing = None, self._missing.lowest()
        for low, high in wanted.ranges() if missing is None else wanted.within(0, missing - 1):
            if low != self._tags.lowest() if up_to is None else self._tags.within(up_to + 1, low - 1):
                break
            up_to = high
        return up_to
