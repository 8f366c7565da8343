"""What the process of Spark and a further reader process (:mod:`reader_process`) send each other, pickled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqp_spark.connect import Connector
    from amqp_spark.options import SourceOptions


@dataclass(frozen=True, slots=True)
class Task:
    """What a process receives, and how.

    Attributes:
        options: of the query, with the queues of this process and its share of the bounds.
        connector: makes its connections.
        bounded: whether it receives only the messages that are there now (AvailableNow).
        settings: of Spark, which only the parent of the first process knows.
        parent: the first process.
    """

    options: SourceOptions
    connector: Connector
    bounded: bool
    settings: Mapping[str, str]
    parent: int


@dataclass(frozen=True, slots=True)
class Call:
    """A call of Spark.

    Attributes:
        name: ``begin``, ``latest_offset``, ``partitions`` or ``commit``.
        offsets: its arguments, with the queues of the process only.
    """

    name: str
    offsets: tuple[dict[str, object], ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a call: its ``value``, or its ``error``, and the ``report`` of the stream after it."""

    value: object = None
    error: Exception | None = None
    report: dict[str, dict[str, object]] | None = None
