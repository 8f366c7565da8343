"""Apache Spark structured streaming source and sink for AMQP 0-10 (Apache Qpid) and AMQP 0-9-1 (RabbitMQ).

Importing this package is cheap: pyspark, pyarrow and amqp_core are imported when one of the names below is used.
"""

from __future__ import annotations

import importlib
import logging
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from amqp_spark.active_session import activate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from amqp_core.version import __version__
    from amqp_spark import errors, functions, monitoring, sink
    from amqp_spark.data_source import AmqpDataSource
    from amqp_spark.diagnosis.examination import doctor
    from amqp_spark.options import SourceOptions

_log = logging.getLogger(__name__)

_MODULES: Final = frozenset({"errors", "functions", "monitoring", "sink"})
"""Public modules: ``amqp_spark.sink.AmqpBatchSink`` needs no further import."""

__all__ = [
    "AmqpDataSource",
    "__version__",
    "doctor",
    "errors",
    "functions",
    "monitoring",
    "register",
    "sink",
    "validate",
]


def register(spark: SparkSession) -> None:
    """Register ``format("amqp")`` with a session, which becomes the active one of this thread; it may be repeated.

    Needed with ``--py-files``; not needed if the package is installed with pip. Spark looks a sink up in the active
    session of the thread. A new thread has none; nor has a notebook after an interrupted cell.

    Args:
        spark: the session.
    """
    from amqp_spark.data_source import AmqpDataSource  # noqa: PLC0415 - imports Spark
    from amqp_spark.python_workers import ship  # noqa: PLC0415

    if "PYSPARK_PYTHON" not in os.environ and sys.prefix != sys.base_prefix and not _python_is_found_on_path():
        _log.warning(
            "PYSPARK_PYTHON is not set and this virtual environment is not the first on the PATH: Spark will start "
            "another Python that may lack this package; set PYSPARK_PYTHON=%s before the session is made",
            sys.executable,
        )
    ship(spark)
    spark.dataSource.register(AmqpDataSource)
    activate(spark)


def _python_is_found_on_path() -> bool:
    found = shutil.which("python3")
    return found is not None and Path(found).parent.resolve() == Path(sys.prefix, "bin").resolve()


def validate(
    options: Mapping[str, object], schema: StructType | str | None = None, *, streaming: bool | None = None
) -> SourceOptions:
    """Check the options of a source, and the requested schema, without any I/O; thread-safe.

    Args:
        options: by name, in any case.
        schema: of the rows; as DDL text it needs an active Spark session. ``None``: only the options are checked.
        streaming: whether they are for a streaming query, or a batch read; ``None``: what only one of them refuses is
            not checked.

    Returns:
        The parsed options.

    Raises:
        OptionError: with every problem of the options, and of the schema if both are wrong.
        SchemaError: with every column that cannot be served.
    """
    from amqp_spark.options import SourceOptions  # noqa: PLC0415

    if schema is None:
        return SourceOptions.parse(options, streaming=streaming)
    from amqp_spark.validation import check_source  # noqa: PLC0415

    if isinstance(schema, str):
        schema = _parse_ddl(schema, options, streaming=streaming)
    return check_source(options, schema, streaming=streaming)[0]


def _parse_ddl(text: str, options: Mapping[str, object], *, streaming: bool | None) -> StructType:
    from pyspark.errors import ParseException  # noqa: PLC0415
    from pyspark.sql.types import StructType  # noqa: PLC0415

    from amqp_spark.error_conditions import SparkCondition  # noqa: PLC0415
    from amqp_spark.errors import OptionError, SchemaError  # noqa: PLC0415
    from amqp_spark.options import SourceOptions  # noqa: PLC0415

    try:
        parsed = StructType.fromDDL(text)
    except ParseException as error:
        why = str(error).strip().splitlines()[0]
        problem = SparkCondition.SCHEMA_INVALID(schema=text, reason=why.removesuffix("."))
        try:
            SourceOptions.parse(options, streaming=streaming)
        except OptionError as wrong:
            raise OptionError([*wrong.problems, problem]) from error
        raise SchemaError([problem]) from error
    return parsed if isinstance(parsed, StructType) else StructType().add("value", parsed)


def __getattr__(name: str) -> object:
    if name == "doctor":
        return importlib.import_module("amqp_spark.diagnosis.examination").doctor
    if name == "AmqpDataSource":
        return importlib.import_module("amqp_spark.data_source").AmqpDataSource
    if name == "__version__":
        return importlib.import_module("amqp_core.version").__version__
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
