"""Decoding of a block of frames to RecordBatches.

:class:`ColumnPlan` is built from the query's schema on the driver, which refuses unsupported columns at once, and used
on the executors. Only the columns of the schema are decoded.
"""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from amqp_spark.arrow.columns.arrays import nulls, take
from amqp_spark.arrow.columns.gathering import gathered
from amqp_spark.arrow.columns.shapes import LEAST_KNOWN_ROWS, LEAST_ROWS, Shapes, Unlike
from amqp_spark.arrow.decode.protocols import DECODERS
from amqp_spark.arrow.decode.schema import DEFAULT_CORRUPT_COLUMN, corrupt_column_problems, schema_problems
from amqp_spark.arrow.without_pandas import to_numpy
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import UNDECODABLE, MessageFormatError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import types as t

    from amqp_spark.arrow.columns.arrays import Array, Column
    from amqp_spark.arrow.columns.batch import Batch, Build
    from amqp_spark.arrow.columns.located import Chunk
    from amqp_spark.arrow.columns.wire import Positions
    from amqp_spark.arrow.decode.protocols import Decoder

    OnReject = Callable[[list[int], str], None]

MOST_ROWS: Final = 10_000
"""Maximum rows of a RecordBatch."""
MOST_BYTES: Final = 16 << 20
"""Maximum bytes of frames decoded to one RecordBatch; a larger message is alone in its batch."""
_REASONS: Final = 10  # maximum distinct reasons of rejected messages per batch
MODES: Final = ("FAILFAST", "REJECT", "PERMISSIVE")
UNITS: Final = ("auto", "s", "ms")


class _Work(NamedTuple):
    """What all batches of one call and one protocol share."""

    builders: list[Build]
    shapes: Shapes
    on_reject: OnReject | None
    left_out: frozenset[int]


class ColumnPlan:
    """Decodes the columns of a schema. It pickles, and does no work before :meth:`batches` is called."""

    def __init__(
        self, schema: t.StructType, mode: str, timestamp_unit: str, corrupt_column: str = DEFAULT_CORRUPT_COLUMN
    ) -> None:
        self.schema = schema
        self.mode = mode
        self.timestamp_unit = timestamp_unit
        self.corrupt_column = corrupt_column
        self.arrow_schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._builders: dict[str, list[Build]] = {}

    @classmethod
    def build(
        cls, schema: t.StructType, *, mode: str, timestamp_unit: str, corrupt_column: str | None = None
    ) -> ColumnPlan:
        """Check a schema with these options; column names are compared without case.

        Raises:
            SchemaError: with every unsupported column, and the permitted types.
        """
        name = corrupt_column or DEFAULT_CORRUPT_COLUMN
        problems = schema_problems(schema, mode=mode, corrupt_column=name)
        if corrupt_column is not None:
            problems += corrupt_column_problems(schema, corrupt_column)
        for option, value, choices in (("mode", mode, MODES), ("timestampUnit", timestamp_unit, UNITS)):
            if value not in choices:
                allowed = ", ".join(choices)
                problem = SparkCondition.OPTION_INVALID(option=option, value=repr(value), reason="", allowed=allowed)
                problems.append(problem)
        if problems:
            raise SchemaError(problems)
        return cls(schema, mode, timestamp_unit, name)

    def __reduce__(self) -> tuple[type[ColumnPlan], tuple[t.StructType, str, str, str]]:
        return type(self), (self.schema, self.mode, self.timestamp_unit, self.corrupt_column)

    def batches(
        self,
        chunks: Iterable[Chunk],
        *,
        queue: str,
        first_position: int,
        on_reject: OnReject | None = None,
        skipped: Iterable[int] = (),
    ) -> Iterator[pa.RecordBatch]:
        """Decode chunks of transfers that have consecutive positions from ``first_position`` on.

        Mode REJECT calls ``on_reject`` with the positions of the rows left out and their common reason. The positions
        ``skipped`` yield no row, whether their messages fit or not.

        Raises:
            MessageFormatError: in mode FAILFAST, for the first message that does not fit.
            DecodeError: the ends of a chunk do not match its transfers.
        """
        position = first_position
        left_out = frozenset(skipped)
        shapes: defaultdict[str, Shapes] = defaultdict(Shapes)
        for chunk in gathered(chunks):
            decoder = DECODERS[chunk.protocol]
            located = decoder.locate(chunk)
            work = _Work(self._builders_of(decoder), shapes[decoder.name], on_reject, left_out)
            rows = len(located.places.end)
            low = 0
            while low < rows:
                high = _cut(located.places.end, low)
                decoded = self._decoded(decoder.batch(located, range(low, high), queue, position + low), work)
                if decoded.num_rows:
                    yield decoded
                low = high
            position += rows

    def _builders_of(self, decoder: Decoder) -> list[Build]:
        found = self._builders.get(decoder.name)
        if found is None:
            found = self._builders[decoder.name] = [
                _nothing if self._is_corrupt(field) else decoder.builder(field, arrow.type, self.timestamp_unit)
                for field, arrow in zip(self.schema.fields, self.arrow_schema, strict=True)
            ]
        return found

    def _decoded(self, batch: Batch, work: _Work) -> pa.RecordBatch:
        """Decode a batch by the shapes of its messages; in the general way if that is not possible."""
        if batch.rows >= (LEAST_KNOWN_ROWS if work.shapes.are_known else LEAST_ROWS):
            try:
                batch.alike = work.shapes.sort(batch, work.builders)
                return self._decode(batch, work)
            except Unlike:
                batch = batch.other(batch.located, batch.range)
        return self._decode(batch, work)

    def _decode(self, batch: Batch, work: _Work) -> pa.RecordBatch:
        columns: list[Array] = []
        wrong: dict[int, dict[str, str]] = {}
        for field, build in zip(self.schema.fields, work.builders, strict=True):
            column, errors = build(batch)
            if not field.nullable and column.null_count:
                rows = np.flatnonzero(to_numpy(column.is_null())).tolist()
                errors = dict.fromkeys(rows, "it is absent, and NOT NULL was asked for") | errors
            for row, reason in errors.items():
                wrong.setdefault(row, {})[field.name] = reason
            if errors and self.mode == "PERMISSIVE":
                column = _without(column, errors)
            columns.append(column)
        for row, reason in batch.broken.items():
            wrong[row] = {UNDECODABLE: reason}
        here = range(batch.position, batch.position + batch.rows)
        gone = {position - batch.position for position in work.left_out if position in here}
        wrong = {row: reasons for row, reasons in wrong.items() if row not in gone}
        if wrong:
            self._settle(batch, columns, wrong, work.on_reject)
        if self.mode == "REJECT":
            gone |= wrong.keys()
        if gone:
            keep = np.ones(batch.rows, np.bool_)
            keep[list(gone)] = False
            kept = np.flatnonzero(keep)
            columns = [take(column, kept) for column in columns]
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow_schema)

    def _is_corrupt(self, field: t.StructField) -> bool:
        return field.name.lower() == self.corrupt_column.lower()

    def _settle(
        self, batch: Batch, columns: list[Array], wrong: dict[int, dict[str, str]], on_reject: OnReject | None
    ) -> None:
        """Handle the rows that do not fit according to ``mode``."""
        if self.mode == "FAILFAST":
            row = min(wrong)
            raise MessageFormatError(batch.queue, batch.position + row, *_first(wrong[row]))
        if self.mode == "PERMISSIVE":
            # Not those of batch.broken: a record has the headers, for which more of a message is read than its columns
            # need.
            broken = [row for row, reasons in wrong.items() if UNDECODABLE in reasons]
            for index, field in enumerate(self.schema.fields):
                if self._is_corrupt(field):
                    columns[index] = _records(batch, wrong)
                elif broken and field.name.lower() not in ("queue", "position"):
                    columns[index] = _without(columns[index], broken)
        elif on_reject is not None:
            for reason, positions in _by_reason(wrong, batch.position).items():
                on_reject(positions, reason)


def _cut(ends: Positions, low: int) -> int:
    """End of the batch that begins with transfer ``low``."""
    begin = int(ends[low - 1]) if low else 0
    high = min(low + MOST_ROWS, len(ends))
    if ends[high - 1] - begin > MOST_BYTES:
        high = max(int(np.searchsorted(ends[:high], begin + MOST_BYTES, side="right")), low + 1)
    return high


def _without(column: Array, rows: Iterable[int]) -> Array:
    """The column with NULL in these rows."""
    mask = np.zeros(len(column), np.bool_)
    mask[list(rows)] = True
    return take(column, np.arange(len(column)), mask)


def _nothing(batch: Batch) -> Column:
    """The column of reasons while every row fits: all NULL."""
    return nulls(batch.rows, pa.string())


def _first(reasons: dict[str, str]) -> tuple[str, str]:
    """Of several columns that a message does not fit, the first one of the schema."""
    return next(iter(reasons.items()))


def _by_reason(wrong: dict[int, dict[str, str]], position: int) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for row, reasons in sorted(wrong.items()):
        column, reason = _first(reasons)
        text = reason if column == UNDECODABLE else f"{column}: {reason}"
        if text not in groups and len(groups) >= _REASONS:
            text = "does not fit the schema, like the ones before for other reasons"
        groups.setdefault(text, []).append(position + row)
    return groups


def _records(batch: Batch, wrong: Mapping[int, Mapping[str, str]]) -> Array:
    """The column of misfits: JSON in the rows of ``wrong`` (row, column, reason), NULL in the others.

    It has ``reasons``, and in base64 ``body`` and ``application_headers`` as received. A message that cannot be decoded
    has ``transfer`` instead, its frames.
    """
    texts: list[str | None] = [None] * batch.rows
    whole = [row for row in sorted(wrong) if UNDECODABLE not in wrong[row]]
    rows = pa.array(whole, pa.int64())
    bodies = batch.bodies().take(rows).to_pylist() if whole else []
    headers = batch.encoded_headers().take(rows).to_pylist() if whole else []
    for row, body, header in zip(whole, bodies, headers, strict=True):
        texts[row] = _record(wrong[row], body=body, application_headers=header)
    for row in wrong.keys() - set(whole):
        texts[row] = _record(wrong[row], transfer=batch.transfer(row))
    return pa.array(texts, pa.string())


def _record(reasons: Mapping[str, str], **parts: bytes | None) -> str:
    kept = {name: base64.b64encode(part).decode() for name, part in parts.items() if part is not None}
    return json.dumps({"reasons": reasons} | kept)
