"""Messages of the same shape: where the fields of one are, those of the others are, too.

The general way finds positions of fields step by step from the bytes that decide about them: sizes, presence flags,
keys, type codes. Here it does so in one message only, and what it reads is recorded (:class:`~.wire.Trace`). A message
that has the same bytes in these places has its fields in the same places, for no other byte was looked at. So the
messages of a batch are only compared with the shapes known so far, in these bytes, several words at once.

A batch is decoded in the general way (:class:`Unlike`) if one of its messages is damaged, or too many shapes are
needed: no byte is checked less, and a damaged message has the same consequences as before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from amqp_spark.arrow.columns.located import Located, Places
from amqp_spark.arrow.columns.wire import Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt

    from amqp_spark.arrow.columns.batch import Batch, Build
    from amqp_spark.arrow.columns.wire import Mask, Positions, Wire

LEAST_ROWS: Final = 256
"""Rows of a batch from which on shapes are worth their cost."""
_MOST_SHAPES: Final = 16  # of one call: to find one costs as much as several hundred messages
_MOST_BYTES: Final = 1024  # of a message, up to the end of its header
_SLICE_ROWS: Final = 512  # compared at once: their bytes should stay in the processor's cache

Question: TypeAlias = "tuple[object, ...]"
"""Names what is to be found in every message."""
Found: TypeAlias = "tuple[npt.NDArray[Any] | None, ...]"
"""Of every message: positions (0: none), and masks of rows (None: none of them)."""
Find: TypeAlias = "Callable[[Any], Found]"
"""Finds it in a batch in the general way."""
Make: TypeAlias = "Callable[[Located, range], Batch]"
"""Makes a batch of some messages."""


class Unlike(Exception):
    """The batch has to be decoded in the general way."""


class _Shape:
    """What was found in one message, with positions counted from its begin, and the bytes from which it follows."""

    def __init__(self, wire: Trace, head: int, asked: dict[Question, Find], make: Make) -> None:
        self._head = head
        end = np.array([wire.length])
        batch = make(Located(wire, Places(np.array([head]), end, end, end, end), {}, {}), range(1))
        found = {question: find(batch) for question, find in asked.items()}
        if batch.broken or wire.is_incomplete:
            raise Unlike
        self.answers = {
            question: tuple([None if each is None else each[0].item() for each in every])
            for question, every in found.items()
        }
        self._begin, words, deciding = wire.decisive()
        self._words = len(words)
        # As often as there are rows in a slice: an operation on one long row is several times faster than on many.
        self._deciding = np.tile(deciding, _SLICE_ROWS)
        self._wanted = np.tile(words & deciding, _SLICE_ROWS)

    def misfits(self, wire: Wire, first: Positions, heads: Positions) -> Mask | None:
        """Which of the messages that begin at ``first``, with the header ``heads`` bytes behind, have other bytes where
        they decide (None: none of them)."""
        result = heads != self._head
        at = first + self._begin
        for low in range(0, len(at) if self._words else 0, _SLICE_ROWS):
            some = at[low : low + _SLICE_ROWS]
            size = len(some) * self._words
            words = wire.words(some, self._words)
            words &= self._deciding[:size]
            same = words == self._wanted[:size]
            if not same.all():
                result[low : low + _SLICE_ROWS] |= ~same.reshape(-1, self._words).all(axis=1)
        return result if result.any() else None


class Alike:
    """Positions in the messages of a batch, all of which have known shapes."""

    def __init__(self, asked: dict[Question, Find], begin: Positions, shapes: Sequence[_Shape], of: Positions) -> None:
        self._asked = asked
        self._begin = begin
        self._shapes = shapes
        self._of = of  # the index of the shape of every message

    def find(self, question: Question, find: Find) -> Found:
        """The answer to a question for every message; Unlike if it is a new one."""
        if question not in self._asked:
            self._asked[question] = find  # for the next batches
            raise Unlike
        answers = [shape.answers[question] for shape in self._shapes]
        return tuple([self._column(values) for values in zip(*answers, strict=True)])

    def _column(self, values: Sequence[int | bool | None]) -> npt.NDArray[Any] | None:
        if all(value is None for value in values):
            return None
        rows, one = len(self._begin), len(values) == 1
        if isinstance(values[0], bool | None):
            masks = [value is True for value in values]
            return np.full(rows, masks[0]) if one else np.array(masks)[self._of]
        if one:
            return self._begin + values[0] if values[0] else np.zeros(rows, np.int64)
        offsets = np.array(values, np.int64)
        positions = offsets[self._of]
        if offsets.all():
            return positions + self._begin
        return np.where(positions == 0, 0, positions + self._begin)


class Shapes:
    """The shapes found during one call, and what has to be found. Not thread-safe."""

    def __init__(self) -> None:
        self._asked: dict[Question, Find] | None = None  # not known yet
        self._known: dict[int, list[_Shape]] = {}  # by bytes of a message up to the end of its header
        self._answered = 0  # how many of the questions the known shapes answer
        self._found = 0

    def sort(self, batch: Batch, builders: Iterable[Build], make: Make) -> Alike:
        """Find the shape of every message of a batch.

        Args:
            batch: the messages.
            builders: make the columns, whose fields are to be found.
            make: makes a batch of other messages.

        Raises:
            Unlike: the batch has to be decoded in the general way.
        """
        if self._asked is None:
            first = make(batch.located, batch.range[:1])
            for build in builders:
                build(first)
            self._asked = first.asked
        if not self._asked or batch.broken or not batch.wire.ordered:
            raise Unlike
        first, head, end = batch.first, batch.head_begin, batch.head_end
        sizes, heads = end - first, head - first
        if int(sizes.max()) > _MOST_BYTES or (head >= end).any():
            raise Unlike
        if self._answered < len(self._asked):
            self._answered = len(self._asked)
            self._known.clear()
        used: list[_Shape] = []
        of = np.zeros(batch.rows, np.int64)
        for size in np.flatnonzero(np.bincount(sizes)).tolist():
            known = self._known.setdefault(size, [])
            left = np.flatnonzero(sizes == size)
            index = 0
            while len(left):
                if index == len(known):
                    known.append(self._shape_of(batch, int(left[0]), self._asked, make))
                shape = known[index]
                index += 1
                wrong = shape.misfits(batch.wire, first[left], heads[left])
                of[left if wrong is None else left[~wrong]] = len(used)
                left = left[:0] if wrong is None else left[wrong]
                used.append(shape)
        return Alike(self._asked, first, used, of)

    def _shape_of(self, batch: Batch, row: int, asked: dict[Question, Find], make: Make) -> _Shape:
        """The shape of one message, which was not seen before."""
        if self._found == _MOST_SHAPES:
            raise Unlike
        self._found += 1
        first, head, end = (int(each[row]) for each in (batch.first, batch.head_begin, batch.head_end))
        wire = Trace(batch.wire.data[first:end], batch.wire.dialect)
        return _Shape(wire, head - first, asked, make)
