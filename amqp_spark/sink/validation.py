"""Checks options and schema of a sink together, so that one error reports all problems."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqp_spark.arrow.encode import MessagePlan
from amqp_spark.errors import OptionError, SchemaError
from amqp_spark.options import SinkOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType

_DECIDES_COLUMNS: Final = ("exchangefromcolumn", "contenttype")
"""Options that change which columns can be sent."""


def check(options: Mapping[str, object], schema: StructType) -> tuple[SinkOptions, MessagePlan]:
    """Parse options and plan messages, without I/O.

    Raises SchemaError when only the schema cannot be served, else OptionError with the problems of both.
    """
    try:
        parsed = SinkOptions.parse(options)
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
        if key.lower() in _DECIDES_COLUMNS:
            try:
                SinkOptions.parse({**base, key: value})
            except OptionError:
                continue
            base[key] = value
    return SinkOptions.parse(base)
