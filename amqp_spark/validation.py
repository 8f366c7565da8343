"""Check options and schema together, so that one error lists all problems."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_spark.arrow.decode import ColumnPlan
from amqp_spark.errors import OptionError, SchemaError
from amqp_spark.options import FAILFAST, SourceOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType


def check(options: Mapping[str, object], schema: StructType) -> tuple[SourceOptions, ColumnPlan]:
    """Parse options and plan columns, without I/O.

    Raises SchemaError if only the schema cannot be served, else OptionError with the problems of both.
    """
    problems: list[str] = []
    parsed: SourceOptions | None = None
    columns: ColumnPlan | None = None
    try:
        parsed = SourceOptions.parse(options)
    except OptionError as error:
        problems.extend(error.problems)
    try:
        columns = ColumnPlan.build(
            schema,
            mode=FAILFAST if parsed is None else parsed.mode,
            timestamp_unit="auto" if parsed is None else parsed.timestamp_unit,
            corrupt_column=None if parsed is None else parsed.corrupt_column,
        )
    except SchemaError as error:
        if parsed is not None:
            raise
        problems.extend(error.problems)
    if parsed is None or columns is None:
        raise OptionError(problems)
    return parsed, columns
