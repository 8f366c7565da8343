"""Messages that nothing tells apart: equal in every byte that their publishers have set, and without a message_id.

Of a batch, all messages are compared, without decoding them. A few words of each, at places that are drawn anew for
each batch, are mixed into a number; only messages with equal numbers are compared as a whole, and of them so many
bytes as make up a small part of the batch. Of earlier batches a sample is remembered.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from amqp_core.v0_9.framing import FRAME_HEADER, HEADER, OVERHEAD
from amqp_spark.arrow.v0_9.decode.located import CONTENT_FLAGS, CONTENT_PROPERTIES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from amqp_spark.arrow.columns.wire import Mask, Positions

    Numbers = npt.NDArray[np.uint64]

_CONSUMER_TAG: Final = FRAME_HEADER + 4
"""Where its size is in basic.deliver: behind class and method."""
_DELIVERY_TAG_SIZE: Final = 8
_HAS_MESSAGE_ID: Final = 0x80
"""In the second byte of the property flags."""
_LEAST: Final = 3 + OVERHEAD + CONTENT_PROPERTIES
"""Bytes behind the flag redelivered in the shortest message."""
_WORD: Final = 8
_WORDS: Final = 5
"""Words of a message that are mixed, besides the last one."""
_ODD: Final = np.uint64(0x9E37_79B9_7F4A_7C15)
_SHIFT: Final = np.uint64(29)
_RUN_BYTES: Final = 1 << 20
"""Smaller parts of a batch are joined: each costs a few steps."""
_SAMPLE: Final = 32
"""Messages of each batch that are remembered."""
_REMEMBERED: Final = 1024
_COMPARED_PART: Final = 32
_COMPARED_LEAST: Final = 1 << 16
"""Of a batch, one byte in 32 is compared at most, and of a small one so many."""


class _Run(NamedTuple):
    """Consecutive deliveries: those that have no message_id."""

    frames: memoryview
    first: Positions
    """Where the bytes begin that the publisher has set: behind the flag redelivered."""
    end: Positions
    is_fresh: Mask
    """Those that were not delivered before."""
    mixed: Numbers


class EqualMessages:
    """Looks for equal messages in one batch after the other. Not thread-safe."""

    def __init__(self) -> None:
        self._remembered: dict[int, None] = {}

    def are_in(self, parts: Sequence[memoryview], ends: npt.NDArray[np.uint64]) -> bool:
        """Whether two messages of a batch are equal, or one is equal to a remembered one of an earlier batch.

        ``ends``: of each delivery, in the joined parts.
        """
        places = sorted(random.random() for _ in range(_WORDS))  # noqa: S311 - no secret
        runs = [_run(frames, begin, end, places) for frames, begin, end in _runs(parts, ends.astype(np.int64))]
        budget = max(_COMPARED_LEAST, int(ends[-1]) // _COMPARED_PART) if len(ends) else 0
        return self._repeats(runs, budget) or _has_equal(runs, budget)

    def _repeats(self, runs: Sequence[_Run], budget: int) -> bool:
        """Whether a message of the sample of this batch is remembered; then it is."""
        left = _SAMPLE
        for run in runs:
            for row in np.flatnonzero(run.is_fresh)[:left].tolist():
                left -= 1
                first, end = int(run.first[row]), int(run.end[row])
                budget -= end - first
                if budget < 0:
                    return False
                content = hash(bytes(run.frames[first:end]))
                if content in self._remembered:
                    return True
                self._remembered[content] = None
        while len(self._remembered) > _REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        return False


def _runs(parts: Sequence[memoryview], ends: Positions) -> Iterator[tuple[memoryview, Positions, Positions]]:
    """The parts in runs of moderate size, with begin and end of each delivery in its run."""
    waiting: list[memoryview] = []
    start = stop = index = 0
    for number, part in enumerate(parts, 1):
        waiting.append(part)
        stop += len(part)
        if stop - start < _RUN_BYTES and number < len(parts):
            continue
        after = int(np.searchsorted(ends, stop, "right"))
        if after > index:
            end = ends[index:after] - start
            begin = np.concatenate((np.zeros(1, np.int64), end[:-1]))
            yield waiting[0] if len(waiting) == 1 else memoryview(b"".join(waiting)), begin, end
        waiting, start, index = [], stop, after


def _run(frames: memoryview, begin: Positions, end: Positions, places: Sequence[float]) -> _Run:
    data = np.frombuffer(frames, np.uint8)
    last = len(data) - 1
    tag = np.minimum(begin + _CONSUMER_TAG, last)
    flags = np.minimum(tag + 1 + data[tag] + _DELIVERY_TAG_SIZE, last)
    size = np.zeros(len(begin), np.int64)
    for at in range(3, FRAME_HEADER):
        size = size << 8 | data[np.minimum(begin + at, last)]
    header = np.minimum(begin + OVERHEAD + size, last)
    properties = data[np.minimum(header + FRAME_HEADER + CONTENT_FLAGS + 1, last)]
    first = flags + 1
    # Another frame in between is rare: that message is left out.
    wanted = (end - first >= _LEAST) & (data[header] == HEADER) & (properties & _HAS_MESSAGE_ID == 0)
    first, end, flags = first[wanted], end[wanted], flags[wanted]
    return _Run(frames, first, end, data[flags] & 1 == 0, _mixed(data, first, end, places))


def _mixed(data: Any, first: Positions, end: Positions, places: Sequence[float]) -> Numbers:
    """A number of each message, of its length and some of its bytes."""
    room = end - first - _WORD
    mixed = room.astype(np.uint64)
    if not len(room):
        return mixed
    words = np.ndarray((len(data) - _WORD + 1,), np.dtype("u8"), data, 0, (1,))  # one at every byte: they overlap
    for place in (1.0, *places):
        mixed ^= words[first + (room * place).astype(np.int64)]
        mixed *= _ODD
        mixed ^= mixed >> _SHIFT
    return mixed


def _has_equal(runs: Sequence[_Run], budget: int) -> bool:
    """Whether two messages are equal, as far as ``budget`` bytes show."""
    if not runs:
        return False
    mixed = np.concatenate([run.mixed for run in runs])
    ordered = np.sort(mixed)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(twice):
        return False
    suspects = np.flatnonzero(np.isin(mixed, twice))
    before = np.cumsum([0, *(len(run.mixed) for run in runs)])
    seen: set[tuple[int, int]] = set()
    for index in suspects[np.argsort(mixed[suspects], kind="stable")].tolist():  # those that may be equal in turn
        number = int(np.searchsorted(before, index, "right")) - 1
        run, row = runs[number], index - int(before[number])
        first, end = int(run.first[row]), int(run.end[row])
        budget -= end - first
        if budget < 0:
            return False
        content = int(mixed[index]), hash(bytes(run.frames[first:end]))
        if content in seen:
            return True
        seen.add(content)
    return False
