"""Check the options and the schema of a source or sink together, so that one error lists all problems."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqp_spark.arrow.decode import ColumnPlan
from amqp_spark.errors import OptionError, SchemaError
from amqp_spark.options import SinkOptions, SourceOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from pyspark.sql.types import StructType

    from amqp_spark.arrow.encode import MessagePlan


_DECIDES_ROWS: Final = ("mode", "columnnameofcorruptrecord")
"""Options that change which columns can be read."""
_DECIDES_COLUMNS: Final = ("exchangefromcolumn", "contenttype", "stablemessageid", "queuetype", "onunsupported")
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
        usable = _usable(SourceOptions.parse, {"url": "amqp://localhost", "queue": "any"}, options, _DECIDES_ROWS)
        try:
            _plan(SourceOptions.parse(usable), schema)
        except SchemaError as more:
            problems.extend(more.problems)
        raise OptionError(problems) from None
    return parsed, _plan(parsed, schema)


def _plan(options: SourceOptions, schema: StructType) -> ColumnPlan:
    unit, corrupt = options.timestamp_unit, options.corrupt_column
    return ColumnPlan.build(schema, mode=options.mode, timestamp_unit=unit, corrupt_column=corrupt)


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
    base |= {key.lower(): "any" for key, value in options.items() if key.lower() in _GIVES_DESTINATION and value}
    return SinkOptions.parse(_usable(SinkOptions.parse, base, options, _DECIDES_COLUMNS))


def _usable(
    parse: Callable[[Mapping[str, object]], object],
    base: Mapping[str, object],
    options: Mapping[str, object],
    names: Collection[str],
) -> dict[str, object]:
    """``base``, and of the given options those with these names that are right."""
    usable = dict(base)
    for key, value in options.items():
        if key.lower() in names:
            try:
                parse({**base, key: value})
            except OptionError:
                continue
            usable[key.lower()] = value
    return usable
