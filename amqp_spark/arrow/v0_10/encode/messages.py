"""Rows as message transfers (0-10 section 4.4, class message).

A message is a transfer command, a header segment of one frame with delivery- and message-properties, and a body segment
unless the body is empty.
"""

from __future__ import annotations

from struct import pack
from typing import TYPE_CHECKING, Final

import numpy as np

from amqp_core.v0_10.spec import MessageAcceptMode, MessageAcquireMode
from amqp_spark.arrow.rows.fields import LARGEST, sized
from amqp_spark.arrow.rows.message_ids import as_uuids
from amqp_spark.arrow.rows.messages import HEADERS, Encoder
from amqp_spark.arrow.rows.row_bytes import RowBytes, present
from amqp_spark.arrow.v0_10.encode import frames, headers
from amqp_spark.arrow.v0_10.encode.frames import FIRST_SEGMENT, FRAME_HEADER, LAST_SEGMENT, WHOLE_SEGMENT, frame
from amqp_spark.arrow.v0_10.encode.properties import PackedLayout
from amqp_spark.arrow.v0_10.properties import DELIVERY, MESSAGE, PROPERTIES
from amqp_spark.arrow.without_pandas import from_numpy
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa
    from pyspark.sql.types import DataType

    from amqp_spark.arrow.encode.plan import MessagePlan
    from amqp_spark.arrow.frame_format import FrameFormat
    from amqp_spark.arrow.layout import Layout
    from amqp_spark.arrow.rows.bodies import Bodies
    from amqp_spark.arrow.rows.messages import TaskId
    from amqp_spark.arrow.rows.row_bytes import Array, Mask, Numbers
    from amqp_spark.arrow.rows.row_errors import Blamed

_BEFORE_DESTINATION: Final = FRAME_HEADER + 6
"""Bytes of a transfer before its destination: the frame header; class, code, session header, flags (section 4)."""


class TransferEncoder(Encoder):
    """Makes transfers on channel 0."""

    def __init__(self, plan: MessagePlan, frame_format: FrameFormat, task_id: TaskId) -> None:
        super().__init__(plan, frame_format, task_id)
        self._check_constants()
        self._room = frame_format.max_frame_size - FRAME_HEADER
        self._modes = bytes((frame_format.accept_mode, MessageAcquireMode.PRE_ACQUIRED))

    def _check_constants(self) -> None:
        """Check the options against the limits of this protocol: when they were parsed it may not have been known."""
        for field in PROPERTIES:
            value = self.plan.constants.get(field.name)
            low, high = field.choices or (0, LARGEST)
            if isinstance(value, int) and not low <= value <= high:
                problem = SparkCondition.OPTION_INVALID(
                    option=field.name, value=value, reason=" with AMQP 0-10", allowed=f"an integer from {low} to {high}"
                )
                raise OptionError([problem])

    def _as_message_ids(self, texts: Array) -> Array:
        return as_uuids(texts)

    def _lacking(self) -> frozenset[str]:
        return frozenset({"type", "cluster_id"})

    @property
    def _header_room(self) -> int:
        return self._room

    def _start(self, exchanges: Array | None, columns: dict[str, Array], rows: int, blamed: Blamed) -> RowBytes:
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
        run.cells(*frame(frames.COMMAND, FIRST_SEGMENT | WHOLE_SEGMENT, fields.size + len(start)), start)
        run.run(fields)
        return run

    def _header(
        self, columns: dict[str, Array], headers: Array | RowBytes | None, rows: int, body: Bodies, blamed: Blamed
    ) -> RowBytes:
        """Delivery- and message-properties, with the length of the body."""
        stated: Mask | None = None if "content_length" not in columns else present(columns["content_length"])
        lengths_of = from_numpy(body.sizes, None if stated is None else ~stated)
        columns = {**columns, "content_length": lengths_of}
        structs = self._struct(DELIVERY, columns, None, rows, blamed)
        structs.run(self._struct(MESSAGE, columns, headers, rows, blamed))
        return structs

    def _struct(
        self, layout: Layout, columns: dict[str, Array], headers: Array | RowBytes | None, rows: int, blamed: Blamed
    ) -> RowBytes:
        packed = PackedLayout(rows, blamed, drops=self.plan.drops_unsupported)
        for field in layout.fields:
            if not field.written:
                continue
            if field.name == HEADERS:
                if headers is not None:
                    packed.add_headers(field, headers)
            elif field.name in columns:
                packed.column(field, columns[field.name], self.plan.timestamp_unit)
            elif field.name in self.plan.constants:
                packed.constant(field, self.plan.constants[field.name])
        return packed.struct32(layout.code)

    def _assembled(self, start: RowBytes, header: RowBytes, body: Bodies) -> tuple[pa.Buffer, Numbers]:
        there = body.sizes > 0
        flags = WHOLE_SEGMENT if there.all() else np.where(there, WHOLE_SEGMENT, WHOLE_SEGMENT | LAST_SEGMENT)
        start.cells(*frame(frames.HEADER, flags, header.size))
        start.run(header)
        return frames.assemble(start, body.raw, body.sizes, self._room)

    def _encoded_headers(self, column: Array, kind: DataType, blamed: Blamed) -> Array | RowBytes:
        return headers.encode(column, kind, blamed)

    def _stamped(self, headers_: Array | None, rows: int, first_row: int) -> Array:
        return headers.stamped(headers_, rows, self.task_id, first_row)


def clear_accept_mode(transfers: bytearray, ends: Iterable[int]) -> None:
    """Set accept-mode none in every transfer, which :class:`TransferEncoder` has made; changed in place."""
    start = 0
    for end in ends:
        destination = start + _BEFORE_DESTINATION
        transfers[destination + 1 + transfers[destination]] = MessageAcceptMode.NONE
        start = end
