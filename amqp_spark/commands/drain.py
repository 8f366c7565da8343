"""Empty queues into files, and report their contents.

    amqp-spark drain --url amqp://broker/default --username guest --password-file /run/secrets/amqp \\
        --queue ticks --output /data/ticks --checkpoint /data/ticks.checkpoint

Takes the messages that are on the queues at the start, except those that other consumers hold, and ends. Each message
is accepted after its file is written. The report on standard output has the number of messages, the first and last of
their timestamps, and the sizes of their bodies. --dry-run browses: the same report, nothing consumed, nothing written.
It needs a broker that speaks AMQP 0-10; with AMQP 0-9-1 (RabbitMQ) only streams can be browsed.

A stream of RabbitMQ (--option queueType=stream) keeps its messages. The first run takes all of them, or those
from --option startingOffsets=... on; a later run with the same checkpoint takes those that have come since.

With --exact the files hold every property in the types that lose nothing, and amqp-spark publish --input /data/ticks
puts the same messages on an exchange again.

spark-submit runs the same, the package installed on all nodes or given by --py-files:

    spark-submit --py-files amqp_spark-*.whl jobs/drain.py --url ...

Progress goes to standard error.

exit codes: 0 done; 1 it failed; 2 the command line or an option is wrong; 3 the broker could not be used (unreachable,
login refused, queue missing); 130, 143 stopped cleanly by SIGINT (Ctrl-C), SIGTERM: the other messages stay.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from amqp_core.standard_output import say
from amqp_spark import cli, validate
from amqp_spark.options import CONNECTION, SOURCE

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

    from amqp_spark.options import SourceOptions

PROGRAM: Final = "amqp-spark drain"
_METRICS = "drain"
_BROWSED = "timestamp TIMESTAMP, body BINARY"
_AUTO_MILLISECONDS = 100_000_000_000  # as docs/options.md says of timestampUnit: larger numbers are not in seconds
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class Report:
    """Contents of the queues. Sizes of bodies in bytes, times in microseconds since 1970; None: no message had one."""

    messages: int = 0
    timestamps: int = 0
    first: int | None = None
    last: int | None = None
    total: int | None = None
    smallest: int | None = None
    largest: int | None = None

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Add the results of :func:`metrics_of` for a part of the messages."""
        self.messages += metrics["messages"]
        self.timestamps += metrics["timestamps"]
        for name, combine in (("first", min), ("last", max), ("total", add), ("smallest", min), ("largest", max)):
            known = [value for value in (getattr(self, name), metrics[name]) if value is not None]
            setattr(self, name, reduce(combine, known) if known else None)

    def text(self) -> str:
        """The report as text for people."""
        if not self.messages:
            return "no messages"
        lines = [f"messages         {self.messages:,}"]
        without = self.messages - self.timestamps
        if self.first is not None and self.last is not None:
            lines += [f"first timestamp  {_time(self.first)}", f"last timestamp   {_time(self.last)}"]
        if without:
            lines += [f"no timestamp     {cli.counted(without, 'message', 'messages')}"]
        if self.total is not None:
            lines += [f"bodies           {self.total:,} bytes, smallest {self.smallest:,}, largest {self.largest:,}"]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """The report as a dictionary for JSON."""
        return {
            "messages": self.messages,
            "without_timestamp": self.messages - self.timestamps,
            "first_timestamp": None if self.first is None else _time(self.first),
            "last_timestamp": None if self.last is None else _time(self.last),
            "body_bytes": self.total,
            "smallest_body": self.smallest,
            "largest_body": self.largest,
        }


def _time(micros: int) -> str:
    try:
        return (_EPOCH + timedelta(microseconds=micros)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    except OverflowError:  # outside of the years 1 to 9999: another unit was meant
        return f"{micros} microseconds since 1970"


def parser(program: str = PROGRAM) -> argparse.ArgumentParser:
    """The command line of ``program``, as its help and errors name it."""
    tables = {"options of the source, for --option": (*CONNECTION, *SOURCE)}
    arguments = cli.job_parser(program, __doc__, tables)
    cli.add_connection_arguments(arguments)
    source = arguments.add_argument_group("source")
    source.add_argument("--queue", action="append", default=[], help="queue to empty; may be repeated", metavar="NAME")
    kind = source.add_mutually_exclusive_group()
    kind.add_argument("--schema", metavar="DDL", help="columns to write and their types (default: every property)")
    kind.add_argument("--exact", action="store_true", help="every property, in the types that lose nothing")
    source.add_argument("--option", action="append", default=[], metavar="K=V", help="further option of the source")
    sink = arguments.add_argument_group("files")
    sink.add_argument("--output", metavar="PATH", help="directory to write to")
    sink.add_argument("--format", metavar="NAME", default="parquet", help="parquet, json, ... (default: %(default)s)")
    sink.add_argument("--sink-option", action="append", default=[], metavar="K=V", help="option of the files' format")
    sink.add_argument("--report", metavar="FILE", help="file to write the report to as JSON, too")
    query = arguments.add_argument_group("query")
    query.add_argument("--dry-run", action="store_true", help="only browse and report: no message is consumed")
    query.add_argument("--checkpoint", metavar="DIR", help="checkpoint location; needed unless it is a dry run")
    query.add_argument("--name", metavar="NAME", help="name of the query")
    cli.add_spark_arguments(query)
    cli.add_watching_arguments(query)
    query.set_defaults(available_now=True)
    return arguments


def check_files(arguments: argparse.Namespace) -> None:
    """Check the paths before Spark does, which would report errors only after a while."""
    if arguments.report is not None:
        check_report(arguments.report)
    if arguments.dry_run:
        return
    if arguments.output is None:
        raise cli.CommandLineError("--output is missing", "Add --output DIRECTORY, or --dry-run for a report only")
    if arguments.checkpoint is None:
        raise cli.CommandLineError(
            "--checkpoint is missing", "Add --checkpoint DIR, so that a restart knows which files are written"
        )


def check_report(name: str) -> None:
    """Check that the file of ``--report`` can be written, without making it: the messages are gone when it is."""
    path = Path(name)
    try:
        there, is_directory = path.exists(), path.is_dir()
        place = path if there else path.parent
        has_parent = there or place.is_dir()
        allowed = os.access(place, os.W_OK if there else os.W_OK | os.X_OK)
    except OSError as error:
        raise cli.CommandLineError(f"--report {name[:60]!r}... is no path: {error.strerror}", "Give a file") from None
    if "\0" in name:
        raise cli.CommandLineError("--report contains a NUL character, which no path does", "Give a file")
    if is_directory:
        raise cli.CommandLineError(f"--report {name} is a directory", "Give a file in it")
    if not has_parent:
        raise cli.CommandLineError(f"--report {name} is in a directory that does not exist", "Make it, or give another")
    if not allowed:
        raise cli.CommandLineError(f"--report {name} may not be written by this user", "Give another file")


def check_browsing(protocol: str) -> None:
    """Check that messages can be read without being consumed, before Spark is started for it."""
    if protocol != "0-10":
        raise cli.CommandLineError(
            f"--dry-run browses, and with AMQP {protocol} messages cannot be read without being consumed",
            "Ask the broker (rabbitmqctl list_queues), or drain with --exact and put the messages back with publish",
        )


def metrics_of(schema: StructType, unit: str) -> list[Column]:
    """The aggregates of a report; times as numbers, which pass through JSON unchanged.

    An aggregate is NULL if the type of ``timestamp`` or ``body`` does not permit it.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - --help and wrong options must not wait for it
    from pyspark.sql import types as t  # noqa: PLC0415

    kinds = {field.name.lower(): field.dataType for field in schema.fields}
    unknown = f.lit(None).cast("bigint")
    micros, size = unknown, unknown
    match kinds["timestamp"]:
        case t.TimestampType():
            micros = f.unix_micros("timestamp")
        case t.LongType():
            number = f.col("timestamp")
            large = (number > _AUTO_MILLISECONDS) | (number < -_AUTO_MILLISECONDS)
            milliseconds = f.lit(unit == "ms") if unit != "auto" else large
            # a number outside the range of that unit has no microseconds
            micros = f.try_multiply(number, f.when(milliseconds, f.lit(1000)).otherwise(f.lit(1_000_000)))
        case _:
            pass
    if isinstance(kinds["body"], t.BinaryType | t.StringType):
        size = f.octet_length("body").cast("bigint")
    return [
        f.count(f.lit(1)).alias("messages"),
        f.count("timestamp").alias("timestamps"),
        f.min(micros).alias("first"),
        f.max(micros).alias("last"),
        f.sum(size).alias("total"),
        f.min(size).alias("smallest"),
        f.max(size).alias("largest"),
    ]


def reading(arguments: argparse.Namespace, corrupt: str | None) -> tuple[StructType, list[str]]:
    """The schema to read with, and the columns of it to write: the report needs timestamps and bodies in any case.

    ``corrupt`` (option ``columnNameOfCorruptRecord``) is a column of every schema that is not the user's own.
    """
    from pyspark.sql.types import StructType  # noqa: PLC0415

    from amqp_spark.arrow.decode import DEFAULT_SCHEMA, schema_with  # noqa: PLC0415

    if arguments.exact:
        schema = schema_with(corrupt, cli.schema_of(cli.exact_ddl()))
    elif arguments.schema is not None:
        schema = cli.schema_of(arguments.schema)
    else:
        schema = schema_with(corrupt)
    names = list(schema.names)
    there = {name.lower() for name in names}
    more = [field for field in DEFAULT_SCHEMA if field.name in {"timestamp", "body"} - there]
    return StructType([*schema.fields, *more]), names


def start(
    spark: SparkSession, arguments: argparse.Namespace, options: dict[str, str], given: SourceOptions
) -> StreamingQuery:
    """Build the query that empties the queues, and start it."""
    schema, names = reading(arguments, given.corrupt_column)
    rows = spark.readStream.format("amqp").options(**options).schema(schema).load()
    rows = rows.observe(_METRICS, *metrics_of(schema, given.timestamp_unit)).select(*(f"`{name}`" for name in names))
    writer = cli.writer_of(rows, arguments).options(**cli.pairs(arguments.sink_option, "--sink-option", side=None))
    return writer.format(arguments.format).start(arguments.output)


def browse(spark: SparkSession, options: dict[str, str], given: SourceOptions) -> Mapping[str, Any]:
    """Compute the report of the messages on the queues."""
    from amqp_spark.arrow.decode import schema_with  # noqa: PLC0415

    schema = schema_with(given.corrupt_column, cli.schema_of(_BROWSED))
    rows = spark.read.format("amqp").options(**options).schema(schema).load()
    return rows.agg(*metrics_of(schema, given.timestamp_unit)).collect()[0].asDict()


def run(arguments: argparse.Namespace, signals: cli.Signals) -> int:
    """Check everything that can be checked, then empty or browse the queues."""
    options = cli.connection_options(arguments, queue=",".join(arguments.queue) or None)
    check_files(arguments)
    given = validate(options, streaming=not arguments.dry_run)
    cli.check_files(options)
    if given.reads_streams and given.starting_offsets is None:
        options["startingOffsets"] = "earliest"  # what is there is to be taken, as in a dry run
    if arguments.dry_run and not given.reads_streams:
        check_browsing(cli.protocol_of(given, signals))
    report = Report()
    with cli.watched_session("drain", arguments) as (spark, watch):
        signals.check()
        validate(options, arguments.schema, streaming=not arguments.dry_run)
        if arguments.dry_run:
            progress = watch.progress()
            found = cli.run_action(spark, lambda: browse(spark, options, given), signals, progress)
            if found is None:
                return signals.exit_code or cli.EXIT_FAILED
            report.add(found)
            code, done = cli.EXIT_DONE, f"browsed in {progress.seconds:.1f} s, nothing was consumed"
        else:
            progress = watch.progress(lambda each: report.add(each.observedMetrics[_METRICS].asDict()))
            with cli.spark_refuses():
                query = start(spark, arguments, options, given)
            try:
                code = cli.follow(query, signals, progress)
            except Exception:
                with suppress(OSError):  # the error says why the query ended
                    deliver(report, arguments.report, f"{progress.summary()}, then it failed", is_complete=False)
                raise
            done = progress.summary()
        # before Spark is stopped: that takes seconds, in which a second signal ends the process
        deliver(report, arguments.report, done, is_complete=code == cli.EXIT_DONE and not progress.missed)
    return code


def deliver(report: Report, file: str | None, done: str, *, is_complete: bool) -> None:
    """Write the report to its file and on standard output: what it counts is no longer on the queues."""
    try:
        if file is not None:
            content = report.as_dict() | ({} if is_complete else {"complete": False})
            Path(file).write_text(json.dumps(content) + "\n", encoding="utf-8")
    finally:
        say(f"drain: {done}\n{report.text()}")


def main(argv: Sequence[str] | None = None, *, program: str = PROGRAM) -> int:
    """Run the job; return the exit code.

    Args:
        argv: arguments; ``None``: those of the process.
        program: as the user started it.
    """
    return cli.job("drain", parser(program), run, argv)
