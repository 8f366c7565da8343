"""The plan of a sink's messages: made on the driver, which refuses a schema that cannot be sent, and used by tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from amqp_spark.arrow.encode.schema import IGNORED, OPTIONS, schema_problems
from amqp_spark.arrow.v0_9.encode.messages import PublishEncoder
from amqp_spark.arrow.v0_10.encode.messages import TransferEncoder
from amqp_spark.errors import SchemaError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

    from amqp_spark.arrow.frame_format import FrameFormat
    from amqp_spark.arrow.rows.messages import Encoder, TaskId
    from amqp_spark.options import SinkOptions

_AMQP_0_10: Final = "0-10"
_PERSISTENT: Final = 2


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
    stable_message_id: bool
    transactional_id: str | None
    drops_unsupported: bool
    """Whether columns that the protocol has no property for are ignored; otherwise they must be NULL."""
    to_streams: bool
    """Whether the messages go to streams of RabbitMQ, which do not keep all headers."""

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
            stable_message_id=options.stable_message_id,
            transactional_id=options.transactional_id,
            drops_unsupported=options.drops_unsupported,
            to_streams=options.queue_type is not None,
        )

    def encoder(self, frame_format: FrameFormat, task_id: TaskId) -> Encoder:
        """An encoder for the frames of a connection, and a task."""
        encoder = TransferEncoder if frame_format.protocol == _AMQP_0_10 else PublishEncoder
        return encoder(self, frame_format, task_id)
