"""Check the options and the schema of a source or sink together, so that one error lists all problems."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqp_spark.arrow.decode import ColumnPlan
from amqp_spark.errors import OptionError, SchemaError
from amqp_spark.options import FAILFAST, SinkOptions, SourceOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType

    from amqp_spark.arrow.encode import MessagePlan


_DECIDES_COLUMNS: Final = ("exchangefromcolumn", "contenttype", "stablemessageid")
"""Options that change which columns can be sent."""
_GIVES_DESTINATION: Final = ("exchange", "routingkey")
"""Options that say where messages go. A wrong value is a problem of its own, and not a missing destination."""


def check_source(
    options: Mapping[str, object], schema: StructType, *, streaming: bool | None = None
) -> tuple[SourceOptions, ColumnPlan]:
    """Parse the options of a source and plan its columns, without I/O; errors as of :func:`check_sink`. ``streaming``:
    see :meth:`SourceOptions.parse`."""
    try:
        parsed = SourceOptions.parse(options, streaming=streaming)
    except OptionError as error:
        problems = list(error.problems)
        try:
            ColumnPlan.build(schema, mode=FAILFAST, timestamp_unit="auto")
        except SchemaError as more:
            problems.extend(more.problems)
        raise OptionError(problems) from None
    unit, corrupt = parsed.timestamp_unit, parsed.corrupt_column
    return parsed, ColumnPlan.build(schema, mode=parsed.mode, timestamp_unit=unit, corrupt_column=corrupt)


def check_sink(
    options: Mapping[str, object], schema: StructType, *, batch_write: bool = False
) -> tuple[SinkOptions, MessagePlan]:
    """Parse the options of a sink, by name in any case, and plan its messages, without I/O; thread-safe.

    Args:
        options: by name, in any case.
        schema: columns of the rows.
        batch_write: whether they are for ``df.write``, which needs `batchId` for exactly-once and stable message ids.

    Raises:
        SchemaError: only the schema cannot be served.
        OptionError: otherwise, with the problems of both.
    """
    from amqp_spark.arrow.encode import MessagePlan  # noqa: PLC0415 - the processes of a source need none of it

    try:
        parsed = SinkOptions.parse(options, batch_write=batch_write)
    except OptionError as error:
        problems = list(error.problems)
        try:
            MessagePlan.build(schema, _stand_in(options))
        except SchemaError as more:
            problems.extend(more.problems)
        raise OptionError(problems) from None
    return parsed, MessagePlan.build(schema, parsed)


def _stand_in(options: Mapping[str, object]) -> SinkOptions:
    """Usable options that decide about columns in the same way as the given ones."""
    base: dict[str, object] = {"url": "amqp://localhost"}
    for key, value in options.items():
        if key.lower() in _GIVES_DESTINATION and value:
            base[key.lower()] = "any"
        elif key.lower() in _DECIDES_COLUMNS:
            try:
                SinkOptions.parse({**base, key: value})
            except OptionError:
                continue
            base[key] = value
    return SinkOptions.parse(base)
