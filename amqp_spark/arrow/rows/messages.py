"""Rows as messages, whatever the protocol: Arrow batches become blocks of encoded frames, column by column.

An encoder is made by :meth:`amqp_spark.arrow.encode.MessagePlan.encoder` for one connection and one task. A protocol
has a class of its own (:class:`Encoder`), which knows its frames and properties.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqp_spark.arrow.columns.arrays import repeated
from amqp_spark.arrow.rows import bodies
from amqp_spark.arrow.rows.message_ids import Partition
from amqp_spark.arrow.rows.row_bytes import RowBytes, binary, flags, is_utf8, join, lengths
from amqp_spark.arrow.rows.row_errors import blame
from amqp_spark.arrow.without_pandas import single, to_numpy
from amqp_spark.error_conditions import FOR_STABLE_IDS, NAMES_OF_STABLE_IDS, SparkCondition
from amqp_spark.errors import OptionError, RowError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import DataType

    from amqp_spark.arrow.encode.plan import MessagePlan
    from amqp_spark.arrow.frame_format import FrameFormat
    from amqp_spark.arrow.rows.bodies import Bodies
    from amqp_spark.arrow.rows.row_bytes import Array, Numbers
    from amqp_spark.arrow.rows.row_errors import Blamed

MOST_ROWS: Final = 10_000
"""Maximum messages of a block: as many as a batch of Spark has."""
MOST_BYTES: Final = 4 << 20
"""Approximate maximum bytes of a block, counted in the columns; a larger message is alone in its block. A block has
a cost of its own, that of some thousand messages: with 1 MiB the encoder took half as much time again."""
KEPT_FREE: Final = 300
"""Bytes of the header frame reserved for brokers, which add to a header on delivery: qpidd the exchange's name (up to
255 bytes and their size), and times; RabbitMQ headers such as ``x-delivery-count``. A header that then exceeds the
frame ends the connection of every consumer.
"""
HEADERS: Final = "application_headers"
"""The property that is a map or a table."""
MESSAGE_ID: Final = "message_id"
_ELSEWHERE: Final = frozenset({"body", "exchange"})
"""Columns that are in the header of no protocol."""


@dataclass(frozen=True, slots=True)
class TaskId:
    """Origin of rows, for errors and `stampHeaders`: the stream's id and batch (None: there is none)."""

    query_id: str | None
    batch_id: int | None
    partition: int


@dataclass(frozen=True, slots=True)
class EncodedBlock:
    """Consecutive messages as encoded frames on the channel that publishes."""

    frames: pa.Buffer
    """Whole messages; 0-10: sync bits clear."""
    ends: Sequence[int]
    """End of each message in ``frames``."""
    first_row: int
    """Position of the first message in its partition."""
    exchanges: Array | None
    """With `exchangeFromColumn` the exchange of every message, never null; None: the exchange of the option."""
    routing_keys: Array | None
    """The routing key of every message, null if it has none; None: the key of the option, or no key."""

    def __len__(self) -> int:
        return len(self.ends)


class Encoder(ABC):
    """Makes frames of the rows of one task for one connection."""

    def __init__(self, plan: MessagePlan, frame_format: FrameFormat, task_id: TaskId) -> None:
        self.plan = plan
        self.task_id = task_id
        self.frame_format = frame_format
        self._lacks = self._lacking()
        dropped = self._lacks if plan.drops_unsupported else frozenset[str]()
        self._partition = self._partition_of(plan, task_id) if plan.stable_message_id else None
        self._columns = {name: index for name, (index, _) in plan.columns.items() if name not in dropped}

    @staticmethod
    def _partition_of(plan: MessagePlan, task_id: TaskId) -> Partition:
        """The rows of the task as message ids name them; OptionError if the task is not told which they are."""
        writer = plan.transactional_id or task_id.query_id
        if writer is None or task_id.batch_id is None:
            raise OptionError(identity_problems(plan.transactional_id, task_id.batch_id))
        return Partition(writer, task_id.batch_id, task_id.partition)

    def blocks(self, batch: pa.RecordBatch, first_row: int) -> Iterator[EncodedBlock]:
        """Encode a batch in blocks; ``first_row`` is the position in the partition of its first row.

        Raises:
            RowError: the first row that cannot be sent; the blocks of earlier rows were returned before.
        """
        if batch.num_columns != self.plan.width:
            raise ValueError(f"a batch of {batch.num_columns} columns; the plan is for {self.plan.width}")
        columns = {name: batch.column(index) for name, index in self._columns.items()}
        for low, high in _cuts(columns, batch.num_rows):
            block = {name: column.slice(low, high - low) for name, column in columns.items()}
            yield self._block(block, high - low, first_row + low)

    # --- what a protocol adds

    @abstractmethod
    def _lacking(self) -> frozenset[str]:
        """Columns that the protocol has no property for."""

    @abstractmethod
    def _header(
        self, columns: dict[str, Array], headers: Array | RowBytes | None, rows: int, body: Bodies, blamed: Blamed
    ) -> RowBytes:
        """The payload of the header frame of every row."""

    @property
    @abstractmethod
    def _header_room(self) -> int:
        """Maximum bytes of the payload of a header frame."""

    @abstractmethod
    def _encoded_headers(self, column: Array, kind: DataType, blamed: Blamed) -> Array | RowBytes:
        """The encoded map or table of every row (BINARY), null where the column is; or its parts if none is null."""

    @abstractmethod
    def _stamped(self, headers: Array | None, rows: int, first_row: int) -> Array:
        """The encoded headers with the stamps of `stampHeaders`."""

    @abstractmethod
    def _start(self, exchanges: Array | None, columns: dict[str, Array], rows: int, blamed: Blamed) -> RowBytes:
        """The frame of the command or method of every row."""

    @abstractmethod
    def _assembled(self, start: RowBytes, header: RowBytes, body: Bodies) -> tuple[pa.Buffer, Numbers]:
        """The frames of all rows, and the end of each row."""

    def _as_message_ids(self, texts: Array) -> Array:
        """Texts in a form that the property message_id takes."""
        return texts

    # --- internals

    def _block(self, columns: dict[str, Array], rows: int, first_row: int) -> EncodedBlock:
        blamed: Blamed = {}
        self._refuse_unsupported(columns, blamed)
        body = bodies.encode(columns["body"], self.plan.columns["body"][1], blamed)
        properties = columns | self._computed(columns, rows, body, first_row, blamed)
        headers = self._headers(columns, rows, first_row, blamed)
        header = self._header(properties, headers, rows, body, blamed)
        self._fits(header, columns, blamed)
        exchanges = self._exchanges(columns, blamed)
        start = self._start(exchanges, columns, rows, blamed)
        if blamed:
            row, (column, reason) = min(blamed.items())
            raise RowError(column, first_row + row, self.task_id.partition, self.task_id.batch_id, reason)
        frames, ends = self._assembled(start, header, body)
        keys = columns.get("routing_key")
        return EncodedBlock(
            frames, memoryview(cast("Any", ends)), first_row, exchanges, None if keys is None else _texts(keys)
        )

    def _refuse_unsupported(self, columns: dict[str, Array], blamed: Blamed) -> None:
        for name, column in columns.items():
            if name not in self._lacks or column.null_count == len(column):
                continue
            there = flags(column) if pa.types.is_boolean(column.type) else to_numpy(column.is_valid())
            reason = (
                f"has a value, and AMQP {self.frame_format.protocol} has no such property: leave the column out, or "
                "set onUnsupported=drop"
            )
            blame(blamed, there, name, reason)

    def _computed(
        self, columns: dict[str, Array], rows: int, body: Bodies, first_row: int, blamed: Blamed
    ) -> dict[str, Array]:
        """Properties that are no columns, or not sent as they are: message id, type of the body."""
        computed: dict[str, Array] = {}
        if self._partition is not None:
            computed[MESSAGE_ID] = self._as_message_ids(self._partition.message_ids(first_row, rows))
        if body.types is not None:
            wanted = self.plan.constants.get("content_type")
            if wanted is None:
                computed["content_type"] = _content_type(columns.get("content_type"), body.types, rows)
            elif not isinstance(body.types, str):  # a VARIANT: the schema check could not decide
                reason = f"is a VARIANT that is not {wanted}, which option contentType says"
                other: Any = pc.not_equal(body.types, pa.scalar(wanted))
                blame(blamed, other.to_numpy(zero_copy_only=False), "body", reason)
        return computed

    def _headers(self, columns: dict[str, Array], rows: int, first_row: int, blamed: Blamed) -> Array | RowBytes | None:
        """The encoded map or table of every row, with stamps."""
        headers: Array | RowBytes | None = None
        if HEADERS in columns:
            headers = self._encoded_headers(columns[HEADERS], self.plan.columns[HEADERS][1], blamed)
        if self.plan.stamp_headers and not blamed:
            whole = join(*headers.pieces()) if isinstance(headers, RowBytes) else headers
            return self._stamped(whole, rows, first_row)
        return headers

    def _exchanges(self, columns: dict[str, Array], blamed: Blamed) -> Array | None:
        column = columns.get("exchange")
        if column is None:
            return None
        names: Any = _texts(column)
        lost = to_numpy(column.is_valid()) & to_numpy(names.is_null())
        blame(blamed, lost, "exchange", "is not UTF-8, as every name of an exchange is")
        return names.fill_null(single(self.plan.exchange)[0])  # type: ignore[no-any-return]

    def _fits(self, header: RowBytes, columns: dict[str, Array], blamed: Blamed) -> None:
        """Check that the header fits one frame, also on delivery: brokers read no other."""
        room = self._header_room - KEPT_FREE
        size = np.full(header.rows, header.size) if isinstance(header.size, int) else header.size
        too_large = np.flatnonzero(size > room)
        if len(too_large):  # only the first faulty row is ever reported
            row = int(too_large[0])
            names = [name for name, column in columns.items() if name not in _ELSEWHERE and column[row].is_valid]
            of = f" (columns {', '.join(names)})" if names else ""
            reason = (
                f"its properties and headers{of} take {size[row]:,} bytes; at most {room:,} are allowed, for they have "
                f"to fit one frame of {self.frame_format.max_frame_size:,} bytes, of which {KEPT_FREE} are left to the "
                "broker: send less in them, or more in the body"
            )
            blamed.setdefault(row, (None, reason))


def identity_problems(transactional_id: str | None, batch_id: int | None) -> list[str]:
    """The options that `stableMessageId` needs outside of streaming queries, and that are not given."""
    given = {"transactionalId": transactional_id, "batchId": batch_id}
    return [
        SparkCondition.OPTION_REQUIRED(option=name, reason=FOR_STABLE_IDS, allowed=allowed)
        for name, allowed in NAMES_OF_STABLE_IDS.items()
        if given[name] is None
    ]


def _content_type(column: Array | None, own: Array | str, rows: int) -> Array:
    """Content type from the row, else that of the encoded body."""
    if isinstance(own, str):
        own = repeated(own, rows)
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
