"""Comparison of data frames with expected rows by chispa, which shows both as a table, differences in colour."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chispa import assert_df_equality

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame
    from pyspark.sql import types as t


def assert_rows(actual: DataFrame, rows: Iterable[Any], schema: str | t.StructType, *, any_order: bool = False) -> None:
    """Fail unless a frame has these rows and columns of these names and types; nullability is ignored.

    Args:
        actual: the frame, df1 in the table.
        rows: the expected rows, df2: tuples, or dictionaries by column, in which NULL values may be left out.
        schema: of the rows, as for ``createDataFrame``.
        any_order: both sides are sorted first, which Spark cannot do by a MAP or a VARIANT.
    """
    wanted = actual.sparkSession.createDataFrame(rows, schema)
    assert_df_equality(actual, wanted, ignore_nullable=True, ignore_row_order=any_order)
