"""Rows as frames of basic.publish (0-9-1 section basic.publish).

A message is the method, its content header in one frame, and its body in as many frames as it needs.
"""

from __future__ import annotations

import time
from struct import pack
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import BinaryType

from amqp_core.v0_9.framing import HEADER, METHOD, OVERHEAD
from amqp_core.v0_9.spec import BasicProperties, BasicPublish
from amqp_spark.arrow.rows.fields import sized
from amqp_spark.arrow.rows.messages import HEADERS, Encoder
from amqp_spark.arrow.rows.row_bytes import RowBytes, flags, number
from amqp_spark.arrow.v0_9.encode import frames, headers
from amqp_spark.arrow.v0_9.encode.frames import END, frame
from amqp_spark.arrow.v0_9.encode.properties import EXPIRATION, TTL, PropertyList
from amqp_spark.arrow.v0_9.properties import PROPERTIES

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

    from amqp_spark.arrow.encode.plan import MessagePlan
    from amqp_spark.arrow.frame_format import FrameFormat
    from amqp_spark.arrow.rows.bodies import Bodies
    from amqp_spark.arrow.rows.messages import TaskId
    from amqp_spark.arrow.rows.row_bytes import Array, Cell, Numbers
    from amqp_spark.arrow.rows.row_errors import Blamed

CHANNEL: Final = 2
"""The channel on which a client publishes."""
_METHOD: Final = BasicPublish.CODE.to_bytes(4) + bytes(2)
"""Class, method, and the reserved field that was a ticket."""
_CONTENT: Final = pack(">HH", BasicProperties.CLASS_ID, 0)
"""Class and weight."""
_MANDATORY: Final = 1
"""The first of the bits mandatory and immediate."""


class PublishEncoder(Encoder):
    """Makes frames of basic.publish."""

    def __init__(
        self, plan: MessagePlan, frame_format: FrameFormat, task_id: TaskId, *, channel: int = CHANNEL
    ) -> None:
        super().__init__(plan, frame_format, task_id)
        self._channel = channel
        self._room = frame_format.max_frame_size - OVERHEAD

    def _lacking(self) -> frozenset[str]:
        """0-9-1 has a bit immediate, but RabbitMQ ends the connection for it (540)."""
        lacking = frozenset({"immediate", "resume_id", "resume_ttl"})
        return lacking if self.frame_format.expiration_is_absolute else lacking | {EXPIRATION}

    @property
    def _header_room(self) -> int:
        return self._room

    def _start(self, exchanges: Array | None, columns: dict[str, Array], rows: int, blamed: Blamed) -> RowBytes:
        """The frame of the method: exchange, routing key, and the bits mandatory and immediate."""
        fields = RowBytes(rows)
        fields.cells(_METHOD)
        if exchanges is None:
            fields.cells(_short(self.plan.exchange))
        else:
            sized(fields, ">u1", exchanges, "exchange", blamed)
        key = columns.get("routing_key")
        if key is None:
            fields.cells(_short(str(self.plan.constants.get("routing_key", ""))))
        else:
            sized(fields, ">u1", key, "routing_key", blamed, null_is_empty=True)
        fields.cells(_mandatory(columns.get("discard_unroutable")))
        run = RowBytes(rows)
        run.cells(*frame(METHOD, self._channel, fields.size))
        run.run(fields)
        run.cells(END)
        return run

    def _header(
        self, columns: dict[str, Array], headers: Array | RowBytes | None, rows: int, body: Bodies, blamed: Blamed
    ) -> RowBytes:
        """Class, weight, size of the body, property flags and properties."""
        plan = self.plan
        now_ms = time.time_ns() // 1_000_000 if self.frame_format.expiration_is_absolute else 0
        properties = PropertyList(rows, blamed, now_ms=now_ms, drops=plan.drops_unsupported)
        for field in PROPERTIES:
            if field.name == HEADERS:
                if headers is not None:
                    properties.add_headers(field, headers)
            elif field.name == TTL and EXPIRATION in columns:
                properties.expiration(field, columns[EXPIRATION], columns.get(TTL), plan.constants.get(TTL))
            elif field.name in columns:
                properties.column(field, columns[field.name], plan.timestamp_unit)
            elif field.name in plan.constants:
                properties.constant(field, plan.constants[field.name])
        run = RowBytes(rows)
        run.cells(_CONTENT, (">u8", body.sizes), number(">u2", properties.flags))
        run.run(properties.fields)
        return run

    def _assembled(self, start: RowBytes, header: RowBytes, body: Bodies) -> tuple[pa.Buffer, Numbers]:
        start.cells(*frame(HEADER, self._channel, header.size))
        start.run(header)
        start.cells(END)
        return frames.assemble(start, body.raw, body.sizes, self._channel, self._room)

    def _encoded_headers(self, column: Array, kind: DataType, blamed: Blamed) -> Array | RowBytes:
        encoded = headers.encode(column, kind, blamed)
        if self.plan.to_streams and not isinstance(encoded, RowBytes) and isinstance(kind, BinaryType):
            headers.refuse_for_streams(encoded, blamed, drops=self.plan.drops_unsupported)
        return encoded

    def _stamped(self, headers_: Array | None, rows: int, first_row: int) -> Array:
        return headers.stamped(headers_, rows, self.task_id, first_row)


def _short(text: str) -> bytes:
    raw = text.encode()
    return bytes([len(raw)]) + raw


def _mandatory(discarded: Array | None) -> Cell:
    """The bits of every row: a message that may be discarded is not mandatory."""
    if discarded is None or discarded.null_count == len(discarded):
        return bytes([_MANDATORY])
    return ">u1", (~flags(discarded)).astype("u1")
