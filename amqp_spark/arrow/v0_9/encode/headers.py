"""The table of headers of a block: encoded, or checked if it is already, and stamps added to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from pyspark.sql import types as t

from amqp_spark.arrow.columns.dialect import AMQP_0_10, is_encoded
from amqp_spark.arrow.rows import stamps
from amqp_spark.arrow.rows.dialect import AMQP_0_9
from amqp_spark.arrow.rows.messages import HEADERS
from amqp_spark.arrow.rows.row_bytes import LARGEST
from amqp_spark.arrow.rows.row_errors import foreign, limited
from amqp_spark.arrow.rows.values import encode_map, map_parts
from amqp_spark.arrow.v0_9.encode.tables import checked, end_of, not_for_streams

if TYPE_CHECKING:
    from amqp_spark.arrow.rows.messages import TaskId
    from amqp_spark.arrow.rows.row_bytes import Array, RowBytes
    from amqp_spark.arrow.rows.row_errors import Blamed


def encode(column: Array, kind: t.DataType, blamed: Blamed) -> Array | RowBytes:
    """The encoded table of every row (BINARY), null where the column is; rows that cannot be sent: ``blamed``."""
    if isinstance(kind, t.BinaryType):
        raw = limited(column, LARGEST, HEADERS, blamed)
        wrong = checked(raw)
        encoded: Array | RowBytes = raw
        for row in wrong:
            if is_encoded(cast("Any", raw[row]).as_py(), AMQP_0_10):
                wrong[row] = foreign("0-10")
    else:
        assert isinstance(kind, t.StructType | t.MapType | t.VariantType)
        encoded, wrong = map_parts(column, kind, AMQP_0_9) or encode_map(column, kind, AMQP_0_9)
    for row, reason in wrong.items():
        blamed.setdefault(row, (HEADERS, reason))
    return encoded


def refuse_for_streams(raw: Array, blamed: Blamed, *, drops: bool) -> None:
    """Refuse encoded headers that a stream of RabbitMQ does not keep; the check of the schema refuses typed ones."""
    for row, reason in not_for_streams(raw, drops=drops).items():
        blamed.setdefault(row, (HEADERS, reason))


def stamped(tables: Array | None, rows: int, task_id: TaskId, first_row: int) -> Array:
    """Add stamps to every encoded table (:func:`amqp_spark.arrow.rows.stamps.stamped`)."""
    origin = stamps.Origin(task_id.query_id, task_id.batch_id, task_id.partition, first_row)
    return stamps.stamped(tables, rows, origin, AMQP_0_9, end_of)
