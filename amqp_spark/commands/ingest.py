"""Stream AMQP queues into any Spark sink: files, a table, the console.

    amqp-spark ingest --url amqp://broker/default --username guest --password-file /run/secrets/amqp \\
        --queue ticks --schema 'body STRING, routing_key STRING' \\
        --format parquet --output /data/ticks --checkpoint /data/ticks.checkpoint --available-now

spark-submit runs the same, the package installed on all nodes or given by --py-files:

    spark-submit --py-files amqp_spark-*.whl jobs/ingest.py --url ...

Progress goes to standard error, one summary line to standard output.

exit codes: 0 done; 1 the query failed; 2 the command line or an option is wrong; 3 the broker could not be used
(unreachable, login refused, queue missing); 130, 143 stopped cleanly by SIGINT (Ctrl-C), SIGTERM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqp_core.standard_output import say
from amqp_spark import cli, validate
from amqp_spark.options import CONNECTION, SOURCE

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PROGRAM: Final = "amqp-spark ingest"
_WITHOUT_CHECKPOINT = frozenset({"console", "noop", "memory"})


def parser(program: str = PROGRAM) -> argparse.ArgumentParser:
    """The command line of ``program``, as its help and errors name it."""
    tables = {"options of the source, for --option": (*CONNECTION, *SOURCE)}
    arguments = cli.job_parser(program, __doc__, tables)
    cli.add_connection_arguments(arguments)
    source = arguments.add_argument_group("source")
    source.add_argument("--queue", action="append", default=[], help="queue to read; may be repeated", metavar="NAME")
    source.add_argument("--schema", metavar="DDL", help="columns to read and their types (default: every property)")
    source.add_argument("--option", action="append", default=[], metavar="K=V", help="further option of the source")
    source.add_argument("--select", action="append", default=[], metavar="EXPR", help="SQL expression to write")
    sink = arguments.add_argument_group("sink")
    sink.add_argument("--format", metavar="NAME", help="parquet, json, console, ... (default: parquet)")
    sink.add_argument("--output", metavar="PATH", help="directory to write to")
    sink.add_argument("--table", metavar="NAME", help="table to write to, instead of --output")
    sink.add_argument("--sink-option", action="append", default=[], metavar="K=V", help="option of the sink")
    sink.add_argument("--partition-by", action="append", default=[], metavar="COLUMN", help="column of directories")
    query = arguments.add_argument_group("query")
    query.add_argument(
        "--checkpoint", metavar="DIR", help="checkpoint location; needed unless the sink is console, noop or memory"
    )
    query.add_argument("--name", metavar="NAME", help="name of the query")
    cli.add_trigger_arguments(query)
    cli.add_spark_arguments(query)
    cli.add_watching_arguments(query)
    return arguments


def source_options(arguments: argparse.Namespace) -> dict[str, str]:
    """The options of the source from the command line."""
    return cli.connection_options(arguments, queue=",".join(arguments.queue) or None)


def check_sink(arguments: argparse.Namespace) -> None:
    """Check the sink before Spark does, which would report errors only after a while."""
    kind = arguments.format or "parquet"
    if arguments.output is not None and arguments.table is not None:
        raise cli.CommandLineError("--output and --table exclude each other", "Give one of them")
    if kind in {"parquet", "json", "csv", "orc", "text"} and arguments.output is None and arguments.table is None:
        raise cli.CommandLineError(f"--format {kind} has no destination", "Add --output DIRECTORY or --table NAME")
    if arguments.checkpoint is None and kind not in _WITHOUT_CHECKPOINT:
        raise cli.CommandLineError(
            "--checkpoint is missing", "Add --checkpoint DIR, so that a restart knows which batches were written"
        )


def start(spark: SparkSession, arguments: argparse.Namespace, options: dict[str, str]) -> StreamingQuery:
    """Build the query and start it."""
    reader = spark.readStream.format("amqp").options(**options)
    if arguments.schema is not None:
        reader = reader.schema(arguments.schema)
    rows = reader.load()
    if arguments.select:
        rows = rows.selectExpr(*arguments.select)
    writer = cli.writer_of(rows, arguments).options(**cli.pairs(arguments.sink_option, "--sink-option", side=None))
    if arguments.format is not None or arguments.table is None:
        writer = writer.format(arguments.format or "parquet")
    if arguments.partition_by:
        writer = writer.partitionBy(*arguments.partition_by)
    if arguments.table is not None:
        return writer.toTable(arguments.table)
    return writer.start(arguments.output)


def run(arguments: argparse.Namespace, signals: cli.Signals) -> int:
    """Check everything that can be checked, then start the query and follow it."""
    options = source_options(arguments)
    check_sink(arguments)
    validate(options, streaming=True)
    cli.check_files(options)
    with cli.watched_session("ingest", arguments) as (spark, watch):
        signals.check()
        validate(options, arguments.schema, streaming=True)
        progress = watch.progress()
        with cli.spark_refuses():
            query = start(spark, arguments, options)
        code = cli.follow(query, signals, progress)
        say(f"ingest: {progress.summary()}")
    return code


def main(argv: Sequence[str] | None = None, *, program: str = PROGRAM) -> int:
    """Run the job; return the exit code.

    Args:
        argv: arguments; ``None``: those of the process.
        program: as the user started it.
    """
    return cli.job("ingest", parser(program), run, argv)
