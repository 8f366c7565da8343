"""Errors of the connector: what a user of Spark sees when options, schema, offsets or messages do not fit.

They pickle (every argument goes to ``super().__init__``), because they cross from workers to the driver, and they
hold no secret.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_core.errors import AmqpError

if TYPE_CHECKING:
    from collections.abc import Iterable


class AmqpSparkError(AmqpError):
    """Base of the connector's own errors; what the core raises is an :class:`amqp_core.errors.AmqpError` too."""


class _Problems(AmqpSparkError, ValueError):
    """One error for everything that is wrong at once; ``problems`` has one text each."""

    what = "problems"

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return self.problems[0]
        lines = "".join(f"\n  - {problem}" for problem in self.problems)
        return f"{len(self.problems)} {self.what}:{lines}"


class OptionError(_Problems):
    """Options that cannot be served; every problem names the option, its value and what is allowed."""

    what = "options cannot be used as given"


class SchemaError(_Problems):
    """A schema that cannot be served; every problem names the column and what is allowed."""

    what = "columns of the schema cannot be served"


class OffsetError(AmqpSparkError, ValueError):
    """An offset from the checkpoint that this source did not write: another format, version or queue."""


UNDECODABLE = "*"
"""The column of a :class:`MessageFormatError` about a message whose header is malformed: no column is to blame."""


class MessageFormatError(AmqpSparkError, ValueError):
    """A message does not fit the schema. Under ``mode=FAILFAST`` this stops the query until somebody acts."""

    def __init__(self, queue: str, position: int, column: str, reason: str) -> None:
        super().__init__(queue, position, column, reason)
        self.queue = queue
        self.position = position
        self.column = column
        self.reason = reason

    def __str__(self) -> str:
        if self.column == UNDECODABLE:
            what, advice = "cannot be decoded", "Read"
        else:
            what, advice = f"does not fit column {self.column!r}", "Change the schema, or read"
        return (
            f"the message at position {self.position} of queue {self.queue!r} {what}: "
            f"{self.reason}. {advice} with mode=REJECT (message.reject: the queue's alternate "
            "exchange gets it) or mode=PERMISSIVE (the column is NULL)"
        )


class UnsupportedModeError(AmqpSparkError):
    """The query runs in an engine mode in which the accept signal cannot be trusted; the text names the other one."""


class TransferError(AmqpSparkError):
    """A batch could not travel from the reader of its query to an executor."""

    retryable = True
