"""Runs of encoded transfers, and the ledger of those sent: completed, rejected, or neither.

No I/O: the caller reports the command ids of the transfers, and which ids the broker has completed (0-10 section
session: completion) or rejected (message.reject).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from amqp_core.error_conditions import CoreCondition
from amqp_core.errors import RejectedUnexpectedly, UsageError
from amqp_core.sequence_numbers import RangeSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_UNROUTABLE = frozenset({1, 312})
# Of so many forgotten ids it is known which were rejected, so that a repeated reject is ignored; one of an earlier id
# is taken for an unexpected one.
_REMEMBERED = 1 << 17


class Transfers:
    """A run: concatenated, encoded message.transfer assemblies on channel 0, without the sync bit.

    Immutable: any thread may use it.

    Args:
        frames: the bytes; any object with the buffer protocol. They must not change until they are completed.
        ends: end offset of each transfer in ``frames``, ascending; the first begins at 0, the last ends with
            ``frames``.
        tag: an object of the caller, returned with rejected transfers. It is held a little longer than ``frames``.
        first: number of the first transfer, if the run is the rest of a longer one.

    Raises:
        UsageError: the last end is not the length of ``frames``.
    """

    __slots__ = ("ends", "first", "frames", "tag")

    def __init__(
        self, frames: bytes | bytearray | memoryview, ends: Sequence[int], tag: object = None, first: int = 0
    ) -> None:
        self.frames = memoryview(frames).cast("B")
        self.ends = ends
        self.tag = tag
        self.first = first
        last = int(ends[-1]) if len(ends) else 0
        if last != self.frames.nbytes:
            name, reason = f"A run of {self.frames.nbytes} bytes", f"its last transfer ends at {last}"
            raise UsageError(CoreCondition.ARGUMENT_INVALID(name=name, reason=reason))

    def __len__(self) -> int:
        return len(self.ends)

    def __repr__(self) -> str:
        return f"<{len(self)} transfers, {self.frames.nbytes} bytes, from number {self.first}>"

    def offset(self, index: int) -> int:
        """Return the byte offset at which transfer ``index`` begins; for ``len(self)`` the total length."""
        return int(self.ends[index - 1]) if index else 0

    def cut(self, start: int, stop: int) -> Transfers:
        """Return the run of transfers ``start`` to ``stop`` (exclusive), without copying bytes."""
        if start == 0 and stop == len(self):
            return self
        low, high = self.offset(start), self.offset(stop)
        ends = [int(end) - low for end in self.ends[start:stop]]
        return Transfers(self.frames[low:high], ends, self.tag, self.first + start)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A transfer that the broker rejected (message.reject). Immutable: any thread may use it.

    Attributes:
        tag: tag of its run.
        index: its number in that run.
        code: the broker's code: unroutable is 1 (0-10 domain reject-code) or 312 (0-9-1 no-route of a basic.return).
            Broker-J on 0-10 also sends 1 and "Unroutable" for a full queue.
        text: the broker's reason.
        run: the run, if its bytes are still held; ``index - run.first`` is the place of the transfer in it.
    """

    tag: object
    index: int
    code: int
    text: str
    run: Transfers | None = field(default=None, compare=False, repr=False)

    @property
    def is_unroutable(self) -> bool:
        """Whether the broker reported the message as unroutable; the cause may be a full queue (see ``code``)."""
        return self.code in _UNROUTABLE


@dataclass(slots=True)
class Counted:
    """A number of transfers, and their bytes with all frames. Not thread-safe: it can be changed."""

    transfers: int = 0
    nbytes: int = 0

    def add(self, transfers: int, nbytes: int) -> None:
        """Add transfers and bytes."""
        self.transfers += transfers
        self.nbytes += nbytes


def runs_of(rejected: Iterable[Rejected]) -> list[Transfers]:
    """Return rejected transfers whose runs are held, in their order, as runs of neighbours; no bytes are copied."""
    found: list[tuple[Transfers, int, int]] = []
    for one in rejected:
        if one.run is None:
            continue
        at = one.index - one.run.first
        if found and found[-1][0] is one.run and found[-1][2] == at:
            found[-1] = one.run, found[-1][1], at + 1
        else:
            found.append((one.run, at, at + 1))
    return [run.cut(start, stop) for run, start, stop in found]


class _Part:
    """Transfers of one run that were sent together, so that their command ids are consecutive."""

    __slots__ = ("done", "first_id", "index", "last_id", "rejected", "start", "tag", "told", "transfers")

    def __init__(self, transfers: Transfers, start: int, count: int, first_id: int) -> None:
        self.transfers: Transfers | None = transfers
        """``None`` once all are completed: the bytes are freed, but ids may still be rejected or located."""
        self.start = start
        self.tag = transfers.tag
        self.index = transfers.first + start
        self.first_id = first_id
        self.last_id = first_id + count - 1
        self.told = 0
        self.done = Counted()
        self.rejected: RangeSet | None = None

    def missing(self, completed: RangeSet) -> list[tuple[int, int]]:
        """The ranges of ids that are neither completed nor rejected."""
        missing = RangeSet([(self.first_id, self.last_id)])
        for low, high in completed.within(self.first_id, self.last_id):
            missing.discard(low, high)
        for low, high in self.rejected.ranges() if self.rejected is not None else ():
            missing.discard(low, high)
        return missing.ranges()


def _first_id(part: _Part) -> int:
    return part.first_id


class Ledger:
    """The transfers that were sent, in the order of their command ids. Not thread-safe.

    Attributes:
        sent: count of all transfers sent.
        told: number of them that the broker has reported as completed.
        completed: count of those completed for certain.
        rejected: rejected transfers that :meth:`take_rejected` has not returned yet.
    """

    def __init__(self) -> None:
        self.sent = Counted()
        self.told = 0
        self.completed = Counted()
        self.rejected: list[Rejected] = []
        self._parts: list[_Part] = []
        self._lead = 0  # number of parts at the front that are completed
        self._forgotten: tuple[int, int] | None = None  # first and last id of the forgotten parts
        self._rejected_there = RangeSet()  # latest ids of the forgotten parts that were rejected

    @property
    def in_flight(self) -> Counted:
        """Count of transfers that were sent and are not completed for certain."""
        sent, completed = self.sent, self.completed
        return Counted(sent.transfers - completed.transfers, sent.nbytes - completed.nbytes)

    def enter(self, transfers: Transfers, start: int, stop: int, first_id: int) -> None:
        """Record that transfers ``start`` to ``stop`` (exclusive) of a run were sent, the first as ``first_id``."""
        self._parts.append(_Part(transfers, start, stop - start, first_id))
        self.sent.add(stop - start, transfers.offset(stop) - transfers.offset(start))

    def settle(self, told: RangeSet, completed: RangeSet | None) -> None:
        """Count the transfers reported as completed, and free the bytes of every part that is wholly ``completed``.

        Args:
            told: ids of all commands that the broker has reported as completed (session.completed).
            completed: ids completed for certain; ``None`` if they have not changed.
        """
        highest = told.highest()
        if highest is None:
            return
        for part in self._parts[self._lead :]:
            if part.first_id > highest:
                break
            if part.transfers is not None:
                self._settle_part(part, part.transfers, told, completed)
        while self._lead < len(self._parts) and self._parts[self._lead].transfers is None:
            self._lead += 1

    def _settle_part(self, part: _Part, transfers: Transfers, told: RangeSet, completed: RangeSet | None) -> None:
        size = part.last_id - part.first_id + 1
        if part.told < size:
            count = sum(high - low + 1 for low, high in told.within(part.first_id, part.last_id))
            self.told += count - part.told
            part.told = count
        if completed is None:
            return
        done = Counted()
        base = part.start - part.first_id
        for low, high in completed.within(part.first_id, part.last_id):
            done.add(high - low + 1, transfers.offset(base + high + 1) - transfers.offset(base + low))
        self.completed.add(done.transfers - part.done.transfers, done.nbytes - part.done.nbytes)
        part.done = done
        if done.transfers == size:
            part.transfers = None

    def forget(self, below: int) -> None:
        """Forget completed parts at the front that begin below id ``below``: they can no longer be rejected."""
        count = min(self._lead, bisect_left(self._parts, below, key=_first_id))
        if not count:
            return
        first = self._forgotten[0] if self._forgotten is not None else self._parts[0].first_id
        self._forgotten = (first, self._parts[count - 1].last_id)
        for part in self._parts[:count]:
            for low, high in part.rejected.ranges() if part.rejected is not None else ():
                self._rejected_there.add(low, high)
        if (old := self._forgotten[1] - _REMEMBERED) >= first:
            self._rejected_there.discard(first, old)
        del self._parts[:count]
        self._lead -= count

    def reject(self, low: int, high: int, code: int, text: str) -> None:
        """Record that ids ``low`` to ``high`` are rejected (message.reject); ids of other commands are ignored.

        Args:
            low, high: first and last id, both included.
            code, text: the broker's reason (domain reject-code).

        Raises:
            RejectedUnexpectedly: one of them was forgotten as completed (:meth:`forget`): it counted as delivered.
        """
        self._check_forgotten(low, high, text)
        if self.rejected and self.rejected[-1].text == text:
            text = self.rejected[-1].text  # thousands of rejects share one text
        first = max(0, bisect_right(self._parts, low, key=_first_id) - 1)
        for part in self._parts[first:]:
            if part.first_id > high:
                break
            if part.rejected is None:
                part.rejected = RangeSet()
            for command_id in range(max(low, part.first_id), min(high, part.last_id) + 1):
                if command_id not in part.rejected:  # a repeated reject is ignored
                    part.rejected.add(command_id, command_id)
                    index = part.index + command_id - part.first_id
                    self.rejected.append(Rejected(part.tag, index, code, text, part.transfers))

    def _check_forgotten(self, low: int, high: int, text: str) -> None:
        if self._forgotten is None:
            return
        first, last = max(low, self._forgotten[0]), min(high, self._forgotten[1])
        if first <= last and not self._rejected_there.covers(first, last):
            raise RejectedUnexpectedly(
                "the broker rejects a message that it had completed, and a sync behind it as well, so that it counted "
                f"as delivered: {text}"
            )

    def take_rejected(self) -> list[Rejected]:
        """Return the transfers rejected since the last call, and forget them."""
        rejected, self.rejected = self.rejected, []
        return rejected

    def locate(self, command_id: int) -> tuple[object, int] | None:
        """Return tag and number of a transfer that is not forgotten; ``None`` for any other command."""
        index = bisect_right(self._parts, command_id, key=_first_id) - 1
        if index < 0 or command_id > self._parts[index].last_id:
            return None
        part = self._parts[index]
        return part.tag, part.index + command_id - part.first_id

    @property
    def first_id(self) -> int:
        """Id of the first transfer whose bytes may still be held; 0 if there is none."""
        return self._parts[self._lead].first_id if self._lead < len(self._parts) else 0

    def frames(self, command_id: int) -> memoryview | None:
        """Return the bytes of a transfer; ``None`` if it is rejected, unknown, or not held any more."""
        index = bisect_right(self._parts, command_id, key=_first_id) - 1
        if index < 0 or command_id > self._parts[index].last_id:
            return None
        part = self._parts[index]
        if part.transfers is None or (part.rejected is not None and command_id in part.rejected):
            return None
        at = part.start + command_id - part.first_id
        return part.transfers.frames[part.transfers.offset(at) : part.transfers.offset(at + 1)]

    def unfinished(self, completed: RangeSet, unsent: Iterable[tuple[Transfers, int]]) -> list[Transfers]:
        """Return transfers that are neither completed nor rejected, in order, then unsent ones; no bytes are copied.

        Args:
            completed: ids completed for certain.
            unsent: runs, each with the number of transfers at its front that were sent.
        """
        found: list[tuple[Transfers, int, int]] = []

        def add(transfers: Transfers, start: int, stop: int) -> None:
            if found and found[-1][0] is transfers and found[-1][2] == start:
                start = found.pop()[1]
            if start < stop:
                found.append((transfers, start, stop))

        for part in self._parts[self._lead :]:
            if part.transfers is not None:
                base = part.start - part.first_id
                for low, high in part.missing(completed):
                    add(part.transfers, base + low, base + high + 1)
        for transfers, start in unsent:
            add(transfers, start, len(transfers))
        return [transfers.cut(start, stop) for transfers, start, stop in found]
