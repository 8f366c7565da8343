"""Found by Spark's static registration: every top-level ``pyspark_*`` module is imported and its DefaultSource used.

A module that fails here hides all Python data sources of the session, so nothing of ours is imported before an
instance is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from typing import Self

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """``format("amqp")``: an instance is an :class:`amqp_spark.AmqpDataSource`."""

    def __new__(cls, options: dict[str, str] | None = None) -> Self:
        """Import the connector now; what goes wrong is an error of this source only."""
        from amqp_spark.data_source import AmqpDataSource  # noqa: PLC0415

        source: Any = AmqpDataSource(options if options is not None else {})
        return source  # type: ignore[no-any-return]

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "amqp"
