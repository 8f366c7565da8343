"""From Arrow rows to encoded messages, for the sink."""

from __future__ import annotations

from amqp_spark.arrow.encode.conversion import convert_maps
from amqp_spark.arrow.encode.plan import MessagePlan
from amqp_spark.arrow.encode.schema import COLUMNS, WIRE_TYPES
from amqp_spark.arrow.frame_format import FrameFormat
from amqp_spark.arrow.rows.messages import EncodedBlock, Encoder, TaskId
from amqp_spark.arrow.v0_10.encode.messages import clear_accept_mode

__all__ = [
    "COLUMNS",
    "WIRE_TYPES",
    "EncodedBlock",
    "Encoder",
    "FrameFormat",
    "MessagePlan",
    "TaskId",
    "clear_accept_mode",
    "convert_maps",
]
