"""From Arrow rows to encoded transfers, for the sink."""

from __future__ import annotations

from amqp_spark.arrow.frame_format import FrameFormat
from amqp_spark.arrow.v0_10.encode.messages import EncodedBlock, Encoder, MessagePlan, TaskId, clear_accept_mode
from amqp_spark.arrow.v0_10.encode.schema import COLUMNS, WIRE_TYPES

__all__ = [
    "COLUMNS",
    "WIRE_TYPES",
    "EncodedBlock",
    "Encoder",
    "FrameFormat",
    "MessagePlan",
    "TaskId",
    "clear_accept_mode",
]
