"""Errors of the connector, shown to users of Spark for invalid options, schemas, offsets or messages.

They can be pickled (every argument goes to ``super().__init__``), because workers send them to the driver, and they
contain no secret.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from amqp_core.errors import AmqpError
from amqp_spark.error_conditions import SparkCondition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amqp_core.error_conditions import Condition


class AmqpSparkError(AmqpError):
    """Base of the connector's own errors; errors of the core are :class:`amqp_core.errors.AmqpError`, too."""


class _Problems(AmqpSparkError, ValueError):
    """One error for all problems; ``problems`` has one text for each."""

    head: ClassVar[Condition]

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return self.problems[0]
        lines = "".join(f"\n  - {problem}" for problem in self.problems)
        return f"{self.head(count=len(self.problems))}{lines}"


class OptionError(_Problems):
    """Invalid options; every problem names the option, its value and the allowed values."""

    head = SparkCondition.OPTIONS_INVALID


class MissingExtra(AmqpSparkError, ImportError):
    """A package that an optional part needs is not installed."""

    @classmethod
    def of(cls, what: str, package: str, extra: str) -> MissingExtra:
        """``what`` needs a ``package``, which comes with an ``extra`` of this one."""
        return cls(SparkCondition.EXTRA_MISSING(what=what, package=package, extra=extra))


class SchemaError(_Problems):
    """A schema that cannot be served; every problem names the column and the allowed types."""

    head = SparkCondition.COLUMNS_INVALID


class OffsetError(AmqpSparkError, ValueError):
    """An offset from the checkpoint that this source did not write: another format, version or queue."""


class LogError(AmqpSparkError):
    """A stream of RabbitMQ cannot be read as asked: it is none, messages are gone, or it was made again."""


class LogTooShort(LogError):
    """A stream ends before an offset that was reached: it was made again, or this node of the cluster lags behind."""

    def __init__(self, log: str, offset: int) -> None:
        super().__init__(log, offset)
        self.log = log
        self.offset = offset

    def __str__(self) -> str:
        return SparkCondition.LOG_REPLACED(
            stream=self.log, offset=self.offset, finding="ends", than="", otherwise=", or its nodes lag behind"
        )


class StateError(AmqpSparkError):
    """The state of exactly-once is missing, in use, foreign, or does not match the checkpoint or the batch."""


class SpoolError(AmqpSparkError):
    """The spool of exactly-once cannot be used: it is missing, full or foreign, or a file is lost or damaged."""


UNDECODABLE = "*"
"""Column of a :class:`MessageFormatError` about a message with a malformed header: the error is in no column."""


class MessageFormatError(AmqpSparkError, ValueError):
    """A message does not fit the schema. With ``mode=FAILFAST`` it stops the query at each start until it is handled.

    Args:
        queue: its queue.
        position: its position in the queue.
        column: the column that it does not fit, or :data:`UNDECODABLE`.
        reason: the reason, without the value.
        advice: a further remedy that the query's guarantee allows; it continues the last sentence of the text.
    """

    def __init__(self, queue: str, position: int, column: str, reason: str, advice: str = "") -> None:
        super().__init__(queue, position, column, reason, advice)
        self.queue = queue
        self.position = position
        self.column = column
        self.reason = reason
        self.advice = advice

    def with_advice(self, advice: str) -> MessageFormatError:
        """Return the same error with other advice."""
        return MessageFormatError(self.queue, self.position, self.column, self.reason, advice)

    def __str__(self) -> str:
        if self.column == UNDECODABLE:
            return SparkCondition.MESSAGE_MALFORMED(
                position=self.position, queue=self.queue, reason=self.reason, advice=self.advice
            )
        return SparkCondition.MESSAGE_UNFIT(
            position=self.position, queue=self.queue, column=self.column, reason=self.reason, advice=self.advice
        )


class RowError(AmqpSparkError, ValueError):
    """A row cannot be sent as a message. No part of it was sent; previous rows may have been sent.

    Args:
        column: the column at fault; ``None`` if several cause the error.
        row: index in the partition, from 0.
        partition, batch_id: the task; ``batch_id`` is ``None`` if the batch has no id.
        reason: continues the text after the column's name.
    """

    def __init__(self, column: str | None, row: int, partition: int, batch_id: int | None, reason: str) -> None:
        super().__init__(column, row, partition, batch_id, reason)
        self.column = column
        self.row = row
        self.partition = partition
        self.batch_id = batch_id
        self.reason = reason

    def __str__(self) -> str:
        what = "" if self.column is None else f"column {self.column!r} "
        place = place_text(self.partition, self.batch_id, self.row)
        return SparkCondition.ROW_INVALID(place=place[0].upper() + place[1:], reason=what + self.reason)


class HeadersError(AmqpSparkError, ValueError):
    """Encoded headers cannot be decoded to the requested types: they are malformed, or of other types.

    Args:
        rows: number of such rows in the batch.
        reason: the reason of the first one.
    """

    def __init__(self, rows: int, reason: str) -> None:
        super().__init__(rows, reason)
        self.rows = rows
        self.reason = reason

    def __str__(self) -> str:
        return SparkCondition.HEADERS_UNFIT(rows=self.rows, reason=self.reason)


class HeadersNotConverted(HeadersError):
    """Encoded headers cannot be converted to another protocol: malformed, or of a type that it does not have.

    Args:
        rows, reason: as of HeadersError.
        protocol: to which they were to be converted.
    """

    def __init__(self, rows: int, reason: str, protocol: str) -> None:
        super().__init__(rows, reason)
        self.args = (rows, reason, protocol)
        self.protocol = protocol

    def __str__(self) -> str:
        return SparkCondition.HEADERS_NOT_CONVERTED(rows=self.rows, reason=self.reason, protocol=self.protocol)


class UnsupportedModeError(AmqpSparkError):
    """Spark or the broker lacks what the mode or guarantee of a query needs; the text names an alternative."""


class ReaderLost(AmqpSparkError):
    """A process that receives some of the queues of a query (option ``numReaders``) ended by itself, or was killed."""


class TransferError(AmqpSparkError):
    """A batch could not be sent from the reader of its query to an executor."""

    retryable = True


@dataclass(frozen=True, slots=True)
class MessagePlace:
    """Where a task has failed, as far as known.

    Attributes:
        partition, batch_id: the task; ``batch_id`` is ``None`` if the batch has no id.
        row: index in the partition, from 0, of the first affected message; ``None`` if the broker does not report it.
        exchange, routing_key: target of that message.
        count: number of affected messages.
    """

    partition: int
    batch_id: int | None = None
    row: int | None = None
    exchange: str | None = None
    routing_key: str | None = None
    count: int | None = None

    def __str__(self) -> str:
        many = "" if self.count is None else f"{self.count:,} message(s), the first is "
        target = "" if self.exchange is None else f" for exchange {self.exchange!r}"
        key = "" if self.routing_key is None else f" with routing key {self.routing_key!r}"
        return f"{many}{place_text(self.partition, self.batch_id, self.row)}{target}{key}"


class PublishFailed(AmqpSparkError):
    """The broker did not take messages of a task; the task fails, and Spark retries it as often as configured.

    Args:
        text: of the error.
        place: of the first affected message; its attributes are also those of the error.
    """

    def __init__(self, text: str, place: MessagePlace) -> None:
        super().__init__(text, place)
        self.partition = place.partition
        self.batch_id = place.batch_id
        self.row = place.row
        self.exchange = place.exchange
        self.routing_key = place.routing_key
        self.count = place.count

    def __str__(self) -> str:
        return str(self.args[0])


class Unroutable(PublishFailed):
    """The broker reports that no queue would get the message; ``onUnroutable=discard`` drops it instead."""


def place_text(partition: int, batch_id: int | None, row: int | None = None) -> str:
    """Format the place of a row, as far as known: ``row 17 of partition 3 in batch 12``."""
    row_text = "" if row is None else f"row {row} of "
    batch_text = "" if batch_id is None else f" in batch {batch_id}"
    return f"{row_text}partition {partition}{batch_text}"


class ConsumerStalled(AmqpSparkError):
    """The broker sends a consumer nothing more; the messages come to the next session."""

    retryable: ClassVar[bool] = True
