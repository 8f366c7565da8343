"""Rows as message transfers: Arrow batches become blocks of encoded frames, column by column.

:class:`MessagePlan` is made on the driver, which refuses a schema that cannot be sent. On an executor it gives an
:class:`Encoder` for one connection and one task. A message is a transfer command, a header segment of one frame with
delivery- and message-properties, and a body segment unless the body is empty (0-10 section 4.4, class message).
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import pack
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqp_core.v0_10.spec import MessageAcceptMode, MessageAcquireMode
from amqp_spark.arrow.rows.row_bytes import RowBytes, binary, is_utf8, lengths, present
from amqp_spark.arrow.rows.row_errors import blame
from amqp_spark.arrow.v0_10.encode import bodies, headers
from amqp_spark.arrow.v0_10.encode.bodies import FIRST_SEGMENT, FRAME_HEADER, LAST_SEGMENT, WHOLE_SEGMENT, frame
from amqp_spark.arrow.v0_10.encode.properties import PackedLayout, sized
from amqp_spark.arrow.v0_10.encode.schema import IGNORED, OPTIONS, schema_problems
from amqp_spark.arrow.v0_10.properties import DELIVERY, MESSAGE
from amqp_spark.errors import RowError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql.types import DataType, StructType

    from amqp_spark.arrow.frame_format import FrameFormat
    from amqp_spark.arrow.layout import Layout
    from amqp_spark.arrow.rows.row_bytes import Array, Mask, Numbers
    from amqp_spark.arrow.rows.row_errors import Blamed
    from amqp_spark.options import SinkOptions

MOST_ROWS: Final = 4096
"""Maximum messages of a block."""
MOST_BYTES: Final = 1 << 20
"""Approximate maximum bytes of a block, counted in the columns; a larger message is alone in its block."""
KEPT_FREE: Final = 300
"""Bytes of the header frame reserved for brokers: on delivery qpidd adds the exchange's name (up to 255 bytes and their
size), and times; a header that then exceeds the frame ends the connection of every consumer.
"""
_BEFORE_DESTINATION: Final = FRAME_HEADER + 6
"""Bytes of a transfer before its destination: the frame header; class, code, session header, flags (section 4)."""
_ELSEWHERE: Final = frozenset({"body", "exchange"})
"""Columns that are not in the header segment."""
_PERSISTENT: Final = 2


@dataclass(frozen=True, slots=True)
class TaskId:
    """Origin of rows, for errors and `stampHeaders`: the stream's id and batch (None: there is none)."""

    query_id: str | None
    batch_id: int | None
    partition: int


@dataclass(frozen=True, slots=True)
class EncodedBlock:
    """Consecutive messages as encoded frames on channel 0."""

    frames: pa.Buffer
    """Whole assemblies, sync bits clear."""
    ends: Sequence[int]
    """End of each transfer in ``frames``."""
    first_row: int
    """Position of the first message in its partition."""
    exchanges: Array | None
    """With `exchangeFromColumn` the exchange of every message, never null; None: the exchange of the option."""
    routing_keys: Array | None
    """The routing key of every message, null if it has none; None: the key of the option, or no key."""

    def __len__(self) -> int:
        return len(self.ends)


@dataclass(frozen=True, slots=True)
class MessagePlan:
    """Encodes the rows of a schema as messages. It pickles. Build it with :meth:`build`."""

    columns: dict[str, tuple[int, DataType]]
    """Index and type of the columns that are sent, by name in lower case."""
    constants: dict[str, int | str]
    """Values that options set in every message, by the name of the column that they override."""
    width: int
    """Number of columns of a batch, including ignored ones."""
    exchange: str
    timestamp_unit: str
    stamp_headers: bool

    @classmethod
    def build(cls, schema: StructType, options: SinkOptions) -> MessagePlan:
        """Check a schema; column names are compared without case.

        Raises:
            SchemaError: with every column that cannot be sent, and the permitted types.
        """
        problems = schema_problems(schema, options)
        if problems:
            raise SchemaError(problems)
        constants = {name: value for name in OPTIONS if (value := getattr(options, name)) is not None}
        columns = {
            name: (index, field.dataType)
            for index, field in enumerate(schema.fields)
            if (name := field.name.lower()) not in IGNORED
            and name not in constants
            and (name != "exchange" or options.exchange_from_column)
        }
        if "delivery_mode" not in columns:
            constants.setdefault("delivery_mode", _PERSISTENT)
        return cls(
            columns=columns,
            constants=constants,
            width=len(schema.fields),
            exchange=options.exchange,
            timestamp_unit=options.timestamp_unit,
            stamp_headers=options.stamp_headers,
        )

    def encoder(self, frame_format: FrameFormat, task_id: TaskId) -> Encoder:
        """An encoder for the frames of a connection, and a task."""
        return Encoder(
            self,
            accept_mode=frame_format.accept_mode,
            max_frame_size=frame_format.max_frame_size,
            task_id=task_id,
        )


class Encoder:
    """Makes frames of the rows of one task for one connection; see :meth:`MessagePlan.encoder`."""

    def __init__(self, plan: MessagePlan, *, accept_mode: int, max_frame_size: int, task_id: TaskId) -> None:
        self.plan = plan
        self.task_id = task_id
        self.max_frame_size = max_frame_size
        self._room = max_frame_size - FRAME_HEADER
        self._modes = bytes((accept_mode, MessageAcquireMode.PRE_ACQUIRED))

    def blocks(self, batch: pa.RecordBatch, first_row: int) -> Iterator[EncodedBlock]:
        """Encode a batch in blocks; ``first_row`` is the position in the partition of its first row.

        Raises:
            RowError: the first row that cannot be sent; the blocks of earlier rows were returned before.
        """
        plan = self.plan
        if batch.num_columns != plan.width:
            raise ValueError(f"a batch of {batch.num_columns} columns; the plan is for {plan.width}")
        columns = {name: batch.column(index) for name, (index, _) in plan.columns.items()}
        for low, high in _cuts(columns, batch.num_rows):
            block = {name: column.slice(low, high - low) for name, column in columns.items()}
            yield self._block(block, high - low, first_row + low)

    def _block(self, columns: dict[str, Array], rows: int, first_row: int) -> EncodedBlock:
        blamed: Blamed = {}
        body = bodies.encode(columns["body"], self.plan.columns["body"][1], blamed)
        properties = columns | self._computed(columns, rows, body, first_row, blamed)
        structs = self._struct(DELIVERY, properties, rows, blamed)
        structs.run(self._struct(MESSAGE, properties, rows, blamed))
        self._fits(structs, columns, blamed)
        exchanges = self._exchanges(columns, blamed)
        head = self._command(exchanges, rows, blamed)
        if blamed:
            row, (column, reason) = min(blamed.items())
            raise RowError(column, first_row + row, self.task_id.partition, self.task_id.batch_id, reason)
        there = lengths(body.raw) > 0
        flags = WHOLE_SEGMENT if there.all() else np.where(there, WHOLE_SEGMENT, WHOLE_SEGMENT | LAST_SEGMENT)
        head.cells(*frame(bodies.HEADER, flags, structs.size))
        head.run(structs)
        frames, ends = bodies.assemble(head, body.raw, self._room)
        keys = columns.get("routing_key")
        return EncodedBlock(
            frames, memoryview(cast("Any", ends)), first_row, exchanges, None if keys is None else _texts(keys)
        )

    def _command(self, exchanges: Array | None, rows: int, blamed: Blamed) -> RowBytes:
        """The frame of the transfer command: class and code, session header, flags, and all three arguments."""
        fields = RowBytes(rows)
        if exchanges is None:
            name = self.plan.exchange.encode()
            fields.cells(pack(">B", len(name)), name)
        else:
            sized(fields, ">u1", exchanges, "exchange", blamed)
        fields.cells(self._modes)
        start = bytes.fromhex("0401 0100 0700")
        run = RowBytes(rows)
        run.cells(*frame(bodies.COMMAND, FIRST_SEGMENT | WHOLE_SEGMENT, fields.size + len(start)), start)
        run.run(fields)
        return run

    def _struct(self, layout: Layout, columns: dict[str, Array], rows: int, blamed: Blamed) -> RowBytes:
        packed = PackedLayout(rows, blamed)
        for field in layout.fields:
            if not field.written:
                continue
            if field.name in columns:
                packed.column(field, columns[field.name], self.plan.timestamp_unit)
            elif field.name in self.plan.constants:
                packed.constant(field, self.plan.constants[field.name])
        return packed.struct32(layout.code)

    def _computed(
        self, columns: dict[str, Array], rows: int, body: bodies.Bodies, first_row: int, blamed: Blamed
    ) -> dict[str, Array]:
        """Properties whose columns are not sent as they are: the length and type of the body, and encoded maps."""
        stated: Mask | None = None if "content_length" not in columns else present(columns["content_length"])
        computed: dict[str, Array] = {
            "content_length": pa.array(lengths(body.raw), mask=None if stated is None else ~stated)
        }
        if body.types is not None:
            wanted = self.plan.constants.get("content_type")
            if wanted is None:
                computed["content_type"] = _content_type(columns.get("content_type"), body.types, rows)
            elif not isinstance(body.types, str):  # a VARIANT: the schema check could not decide
                reason = f"is a VARIANT that is not {wanted}, which option contentType says"
                other: Any = pc.not_equal(body.types, pa.scalar(wanted))
                blame(blamed, other.to_numpy(zero_copy_only=False), "body", reason)
        for name in headers.MAPS & columns.keys():
            computed[name] = headers.encode(name, columns[name], self.plan.columns[name][1], blamed)
        if self.plan.stamp_headers and not blamed:
            computed[headers.COLUMN] = headers.stamped(
                computed.get(headers.COLUMN),
                rows,
                query_id=self.task_id.query_id,
                batch_id=self.task_id.batch_id,
                partition=self.task_id.partition,
                first_row=first_row,
            )
        return computed

    def _exchanges(self, columns: dict[str, Array], blamed: Blamed) -> Array | None:
        column = columns.get("exchange")
        if column is None:
            return None
        names: Any = _texts(column)
        lost: Any = pc.and_(column.is_valid(), names.is_null())
        blame(blamed, lost.to_numpy(zero_copy_only=False), "exchange", "is not UTF-8, as every name of an exchange is")
        return names.fill_null(self.plan.exchange)  # type: ignore[no-any-return]

    def _fits(self, structs: RowBytes, columns: dict[str, Array], blamed: Blamed) -> None:
        """Check that the header segment fits one frame, also on delivery: brokers read no other."""
        room = self._room - KEPT_FREE
        size = np.full(structs.rows, structs.size) if isinstance(structs.size, int) else structs.size
        too_large = np.flatnonzero(size > room)
        if len(too_large):  # only the first faulty row is ever reported
            row = int(too_large[0])
            names = [name for name, column in columns.items() if name not in _ELSEWHERE and column[row].is_valid]
            of = f" (columns {', '.join(names)})" if names else ""
            reason = (
                f"its properties and headers{of} take {size[row]:,} bytes; at most {room:,} are allowed, for they have "
                f"to fit one frame of {self.max_frame_size:,} bytes, of which {KEPT_FREE} are left to the broker: send "
                "less in them, or more in the body"
            )
            blamed.setdefault(row, (None, reason))


def _content_type(column: Array | None, own: Array | str, rows: int) -> Array:
    """Content type from the row, else that of the encoded body."""
    if isinstance(own, str):
        own = pa.repeat(pa.scalar(own), rows)
    if column is None or column.null_count == rows:
        return own
    chosen: Any = column  # keep its type: STRING is checked for UTF-8
    return pc.coalesce(chosen, own.cast(column.type))


def _texts(column: Array) -> Array:
    """A column of names as STRING. Names in a BINARY column are null if they are not UTF-8.

    Invalid UTF-8 is never replaced by similar text: that could be another exchange, or a key that is bound.
    """
    if pa.types.is_string(column.type):
        return column  # the encoder refuses invalid UTF-8
    raw = binary(column)
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        items: list[bytes | None] = raw.to_pylist()
        texts = [item if item is not None and is_utf8(item) else None for item in items]
        return pa.array(texts, pa.string())


def _cuts(columns: dict[str, Array], rows: int) -> Iterator[tuple[int, int]]:
    """Ranges of blocks: by the bytes of every body, and the mean of the other bytes of a row."""
    if not rows:
        return
    body = columns["body"]
    rest = sum(column.nbytes for name, column in columns.items() if name != "body")
    if pa.types.is_nested(body.type):
        rest += body.nbytes
        size: Numbers = np.zeros(rows, np.int64)
    else:
        size = lengths(body).astype(np.int64)
    ends = np.cumsum(size + rest // rows)
    low = 0
    while low < rows:
        before = int(ends[low - 1]) if low else 0
        high = int(np.searchsorted(ends, before + MOST_BYTES, "right"))
        high = min(max(high, low + 1), low + MOST_ROWS, rows)
        yield low, high
        low = high


def clear_accept_mode(frames: bytearray, ends: Iterable[int]) -> None:
    """Set accept-mode none in every transfer of ``frames``, which :class:`Encoder` has made; changed in place."""
    start = 0
    for end in ends:
        destination = start + _BEFORE_DESTINATION
        frames[destination + 1 + frames[destination]] = MessageAcceptMode.NONE
        start = end
