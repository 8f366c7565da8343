"""The Spark session of a job, and its queries."""

from __future__ import annotations

import locale
import os
import signal
import sys
import tempfile
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from amqp_spark.cli.arguments import pairs
from amqp_spark.cli.errors import CommandLineError, spark_refuses

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType


def exact_types() -> dict[str, str]:
    """All columns and the types (DDL) that lose nothing: headers and opaque properties as bytes, times as numbers."""
    from amqp_spark.arrow.decode import COLUMNS  # noqa: PLC0415 - --help and wrong options must not wait for Spark

    return {name: column.exact for name, column in COLUMNS.items()}


def exact_ddl(without: Collection[str] = ()) -> str:
    """:func:`exact_types` as a DDL schema, without the given columns."""
    return ", ".join(f"{name} {kind}" for name, kind in exact_types().items() if name not in without)


def schema_of(ddl: str) -> StructType:
    """Columns and their types from text; needs a session. Raises CommandLineError if it names no columns."""
    from pyspark.sql.types import StructType  # noqa: PLC0415 - --help and wrong options must not wait for it

    with spark_refuses():
        schema = StructType.fromDDL(ddl)
    if not isinstance(schema, StructType):
        raise CommandLineError(f"{ddl!r} is a type, not columns", "Write for instance 'symbol STRING, price DOUBLE'")
    return schema


def check_temporary_directory() -> None:
    """Java reads file names in the encoding of the locale; PySpark waits for ever for a file that Java cannot make.

    Raises:
        CommandLineError: the temporary directory has no name in that encoding.
    """
    directory, encoding = tempfile.gettempdir(), locale.getencoding()
    try:
        directory.encode(encoding)
    except UnicodeEncodeError:
        raise CommandLineError(
            f"Java cannot use the temporary directory {directory!r}: the locale has no such characters ({encoding})",
            "Set LC_ALL=C.UTF-8, or TMPDIR to a directory with another name",
        ) from None


def spark_session(
    name: str, conf: Mapping[str, str], master: str | None, *, verbose: bool = False
) -> tuple[SparkSession, bool]:
    """A session whose workers run this interpreter, with ``format("amqp")`` registered, and whether it is new.

    An existing one, as in a notebook, must not be stopped or silenced. The handler of SIGINT stays.
    """
    # Spark's own default is the first python3 on the PATH, which in a virtual environment that is not activated lacks
    # everything: each query would then fail after a minute with "Python worker failed to connect back".
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession  # noqa: PLC0415 - --help and wrong options must not wait for it

    from amqp_spark import register  # noqa: PLC0415

    new = SparkSession.getActiveSession() is None
    if new:
        check_temporary_directory()
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in conf.items():
        builder = builder.config(key, value)
    if new and not verbose and "spark.log.level" not in conf:
        builder = builder.config("spark.log.level", "ERROR")
    before = signal.getsignal(signal.SIGINT)
    spark = builder.getOrCreate()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, before)  # Spark's calls Java, also in the middle of another call
    if new and not verbose:
        _let_us_explain(spark)
    register(spark)
    return spark, new


#: Loggers that print a trace of a hundred lines when a task or a query fails.
_VERBOSE = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.datasources.v2",
    "org.apache.spark.sql.execution.streaming",
    "org.apache.spark.util.Utils",
)


def _let_us_explain(spark: SparkSession) -> None:
    """Silence Spark's loggers: :func:`amqp_spark.cli.explain` explains failures in one line instead of hundreds."""
    try:
        log4j = spark.sparkContext._jvm.org.apache.logging.log4j  # type: ignore[union-attr]  # there is a JVM now
        for name in _VERBOSE:
            log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)
    except Exception:  # noqa: BLE001 - another logging back end, or Spark Connect: then both are shown
        return


@contextmanager
def session(program: str, arguments: argparse.Namespace) -> Iterator[SparkSession]:
    """The session that the command line requests; stopped at the end if it was created here."""
    conf = {"spark.ui.showConsoleProgress": "false", **pairs(arguments.conf, "--conf")}
    name = getattr(arguments, "name", None) or f"amqp {program}"
    spark, new = spark_session(name, conf, arguments.master, verbose=arguments.verbose)
    try:
        yield spark
    finally:
        if new:
            with suppress(Exception):  # Java is gone: the error of the job says so, and what was done is done
                spark.stop()


def writer_of(rows: DataFrame, arguments: argparse.Namespace) -> DataStreamWriter:
    """A writer that appends a stream of rows, with the checkpoint, name and trigger of the command line."""
    writer = rows.writeStream.outputMode("append")
    if arguments.checkpoint is not None:
        writer = writer.option("checkpointLocation", arguments.checkpoint)
    if arguments.name is not None:
        writer = writer.queryName(arguments.name)
    if arguments.available_now:
        return writer.trigger(availableNow=True)
    if arguments.processing_time is not None:
        return writer.trigger(processingTime=arguments.processing_time)
    return writer
