"""Messages of the same shape: where the fields of one are, those of the others are, too.

The general way finds positions of fields step by step from the bytes that decide about them: sizes, presence flags,
keys, type codes. Here it does so in one message only, and what it reads is recorded (:class:`~.wire.Trace`). A message
that has the same bytes in these places has its fields in the same places, for no other byte was looked at. So the
messages of a batch are only compared with the shapes known so far, in these bytes, several words at once.

A batch is decoded in the general way (:class:`Unlike`) if one of its messages is damaged, or too many shapes are
needed. So no byte is checked less, and a damaged message has the same consequences in both ways.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import numpy as np

from amqp_spark.arrow.columns.headers import Entries
from amqp_spark.arrow.columns.located import Located, Places
from amqp_spark.arrow.columns.wire import Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt

    from amqp_spark.arrow.columns.batch import Batch, Build
    from amqp_spark.arrow.columns.wire import Mask, Positions, Wire

LEAST_ROWS: Final = 4096
"""Rows of a batch from which on it is worth its cost to find shapes."""
LEAST_KNOWN_ROWS: Final = 256
"""The same if some are known already."""
# To find a shape costs about as much as to decode this many messages.
_ROWS_PER_SHAPE: Final = 640
_FIRST_SHAPES: Final = 16
_MOST_SHAPES: Final = 64
_MOST_OF_SIZE: Final = 4  # shapes of messages of the same size; where they are more, their number has no bounds
_MOST_BYTES: Final = 1024  # of a message, up to the end of its header
_SLICE_ROWS: Final = 640  # compared at once: their bytes should stay in the processor's cache

Question: TypeAlias = "tuple[object, ...]"
"""Names what is to be found in every message."""
Found: TypeAlias = "tuple[npt.NDArray[Any] | None, ...]"
"""Of every message: positions (0: none), and masks of rows (None: none of them)."""
Find: TypeAlias = "Callable[[Any], Found | Entries | None]"
"""Finds it in a batch in the general way; None: each message should be decoded alone."""


class Unlike(Exception):
    """The batch has to be decoded in the general way."""


class Shape:
    """What was found in one message, with positions counted from its begin, and the bytes from which it follows."""

    def __init__(self, batch: Batch, row: int, asked: dict[Question, Find]) -> None:
        first, head, end = (int(each[row]) for each in (batch.first, batch.head_begin, batch.head_end))
        wire = Trace(batch.wire.data[first:end], batch.wire.dialect)
        self._head = head - first
        ends = np.array([end - first])
        batch = batch.other(Located(wire, Places(np.array([self._head]), ends, ends, ends, ends), {}, {}), range(1))
        self.answers = {question: find(batch) for question, find in asked.items()}
        if batch.broken or not wire.is_complete or None in self.answers.values():
            raise Unlike
        self._begin, words, deciding = wire.decisive()
        self._wanted = words & deciding
        self._deciding = deciding
        self._repeat(1)

    def _repeat(self, rows: int) -> None:
        """Make rows of words: an operation on one long row is several times faster than on many."""
        self._repeated = rows
        self._all_deciding = np.tile(self._deciding, rows)
        self._all_wanted = np.tile(self._wanted, rows).tobytes()

    def misfits(self, wire: Wire, first: Positions, heads: Positions) -> Mask | None:
        """Which of the messages that begin at ``first``, with the header ``heads`` bytes behind, have other bytes where
        they decide (None: none of them)."""
        result = heads != self._head
        at = first + self._begin
        if self._repeated < min(len(at), _SLICE_ROWS):
            self._repeat(min(len(at), _SLICE_ROWS))
        count = len(self._wanted)
        every = wire.at_every_byte(f"V{8 * count}")
        for low in range(0, len(at), _SLICE_ROWS):
            words = every[at[low : low + _SLICE_ROWS]].view(np.uint64)
            words &= self._all_deciding[: len(words)]
            if not self._all_wanted.startswith(words.tobytes()):
                result[low : low + _SLICE_ROWS] |= (words.reshape(-1, count) != self._wanted).any(axis=1)
        return result if result.any() else None


class Alike:
    """Positions in the messages of a batch, all of which have known shapes."""

    def __init__(self, asked: dict[Question, Find], first: Positions) -> None:
        self._asked = asked
        self._first = first
        self._shapes: list[Shape] = []
        self._examples: list[int] = []  # of every shape, a row that has it
        self._of = np.zeros(len(first), np.int64)  # the index of the shape of every row

    @property
    def count(self) -> int:
        """Number of shapes."""
        return len(self._shapes)

    def add(self, rows: Positions, shape: Shape) -> None:
        """These rows, at least one, have this shape."""
        if self._shapes:
            self._of[rows] = len(self._shapes)
        self._shapes.append(shape)
        self._examples.append(int(rows[0]))

    def find(self, question: Question, find: Find) -> Found:
        """The answer to a question for every message; Unlike if it is a new one."""
        answers = self._answers(question, find)
        return tuple([self._column(found) for found in zip(*answers, strict=True)])

    def entries(self, question: Question, find: Find) -> Entries:
        """All entries of the maps, by kind; Unlike if that is a new question."""
        answers = cast("list[Entries]", self._answers(question, find))
        counts = np.array([len(answer.key_at) for answer in answers])
        order = np.argsort(self._examples)
        before = np.zeros_like(counts)  # kinds of other shapes
        before[order[1:]] = np.cumsum(counts[order[:-1]])
        counts_of_rows = counts[self._of]
        bounds = np.zeros(len(self._first) + 1, np.int64)
        np.cumsum(counts_of_rows, out=bounds[1:])
        kinds = np.arange(bounds[-1]) + np.repeat(before[self._of] - bounds[:-1], counts_of_rows)
        first = np.repeat(self._first, counts_of_rows)

        def column(parts: Sequence[Positions]) -> Positions:
            return cast("Positions", np.concatenate([parts[index] for index in order])[kinds] + first)

        return Entries(
            bounds,
            key_at=column([answer.key_at for answer in answers]),
            code_at=column([answer.code_at for answer in answers]),
            after=column([answer.after for answer in answers]),
            kinds=kinds,
            examples=np.concatenate([np.arange(counts[i]) + bounds[self._examples[i]] for i in order]),
        )

    def _answers(self, question: Question, find: Find) -> list[Any]:
        if question not in self._asked:
            self._asked[question] = find  # for the next batches
            raise Unlike
        return [shape.answers[question] for shape in self._shapes]

    def _column(self, found: Sequence[npt.NDArray[Any] | None]) -> npt.NDArray[Any] | None:
        """The values of all rows, of one value for each shape."""
        if all(value is None for value in found):
            return None
        values = [False if value is None else value[0] for value in found]
        rows, one = len(self._first), len(values) == 1
        if isinstance(values[0], np.bool_ | bool):
            return np.full(rows, values[0]) if one else np.array(values)[self._of]
        if one:
            return self._first + values[0] if values[0] else np.zeros(rows, np.int64)
        offsets = np.array(values, np.int64)
        positions = offsets[self._of]
        if offsets.all():
            positions += self._first
            return positions
        return np.where(positions == 0, 0, positions + self._first)


class Shapes:
    """The shapes found during one call, and what has to be found. Not thread-safe."""

    def __init__(self) -> None:
        self._asked: dict[Question, Find] | None = None  # not known yet
        self._known: dict[int, list[Shape]] = {}  # by bytes of a message up to the end of its header
        self._answered = 0  # how many of the questions the known shapes answer
        self._found = 0
        self._rows = 0  # of all batches so far
        self._trials = 0  # that have failed, since there are too many shapes
        self._skipped = 0  # batches since then

    @property
    def are_known(self) -> bool:
        """Whether some shapes are known."""
        return bool(self._known)

    def sort(self, batch: Batch, builders: Iterable[Build]) -> Alike:
        """Find the shape of every message of a batch.

        Args:
            batch: the messages.
            builders: make the columns, whose fields are to be found.

        Raises:
            Unlike: the batch has to be decoded in the general way.
        """
        self._rows += batch.rows
        if self._skipped < (1 << self._trials) - 1:
            self._skipped += 1
            raise Unlike
        if self._asked is None:
            one = batch.other(batch.located, batch.range[:1])
            for build in builders:
                build(one)
            self._asked = one.asked
        if not self._asked or batch.broken or not batch.wire.ordered:
            raise Unlike
        first, heads = batch.first, batch.head_begin - batch.first
        sizes = batch.head_end - first
        if int(sizes.max()) > _MOST_BYTES or (heads >= sizes).any():
            raise Unlike
        if self._answered < len(self._asked):
            self._answered = len(self._asked)
            self._known.clear()
        alike = Alike(self._asked, first)
        every_size = np.flatnonzero(np.bincount(sizes)).tolist()
        self._check_number(sum(size not in self._known for size in every_size))
        for size in every_size:
            known = self._known.setdefault(size, [])
            left = np.flatnonzero(sizes == size)
            index = 0
            while len(left):
                if index == len(known):
                    self._check_number(1 if index < _MOST_OF_SIZE else _MOST_SHAPES)  # these would be too many
                    self._found += 1
                    known.append(Shape(batch, int(left[0]), self._asked))
                shape = known[index]
                index += 1
                wrong = shape.misfits(batch.wire, first[left], heads[left])
                right = left if wrong is None else left[~wrong]
                if len(right):
                    alike.add(right, shape)
                left = left[:0] if wrong is None else left[wrong]
        return alike

    def _check_number(self, more: int) -> None:
        """Unlike if so many more shapes would be too many; then later batches are not tried either, for a while."""
        most = min(max(_FIRST_SHAPES, self._rows // _ROWS_PER_SHAPE), _MOST_SHAPES)
        if more and self._found + more > most:
            self._trials += 1
            self._skipped = 0
            raise Unlike
