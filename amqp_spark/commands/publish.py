"""Publish rows of any Spark source to an exchange: files, a table, a query.

    amqp-spark publish --url amqp://broker/default --username guest --password-file /run/secrets/amqp \\
        --input /data/ticks --column 'body=to_json(struct(*))' --column "routing_key=concat('ticks.', symbol)" \\
        --header 'symbol=symbol' --header 'price=price' --exchange amq.topic

As a stream, new rows are published as they arrive:

    amqp-spark publish ... --format json --input /data/incoming --schema 'symbol STRING, price DOUBLE' \\
        --stream --checkpoint /data/incoming.checkpoint

A row becomes a message. Without --column the columns of the input are the properties of the message
(docs/columns.md); with it only the named ones, and --column '*' keeps the others. NULL is an absent property.

spark-submit runs the same, the package installed on all nodes or given by --py-files:

    spark-submit --py-files amqp_spark-*.whl jobs/publish.py --url ...

Progress goes to standard error, one summary line to standard output.

exit codes: 0 done, the broker has every message; 1 it failed; 2 the command line, an option or a column is wrong; 3 the
broker could not be used, or did not take a message (unreachable, login refused, exchange missing, nothing bound, queue
full); 130, 143 stopped by SIGINT (Ctrl-C), SIGTERM. With 1, 3, 130 and 143 a part may be published.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from amqp_core.standard_output import say
from amqp_spark import cli
from amqp_spark.options import CONNECTION, DISCARD, SINK, SinkOptions

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

PROGRAM: Final = "amqp-spark publish"
_FILES = frozenset({"parquet", "json", "csv", "orc", "text", "xml", "avro"})
_FIXED_SCHEMA = frozenset({"text"})
_HEADERS = "application_headers"


def parser(program: str = PROGRAM) -> argparse.ArgumentParser:
    """The command line of ``program``, as its help and errors name it."""
    arguments = cli.job_parser(program, __doc__, {"options of the sink, for --option": (*CONNECTION, *SINK)})
    cli.add_connection_arguments(arguments)
    source = arguments.add_argument_group("input")
    source.add_argument(
        "--format", metavar="NAME", help="parquet, json, csv, ..., any source of Spark (default: parquet)"
    )
    source.add_argument(
        "--input", action="append", default=[], metavar="PATH", help="file or directory to read; may be repeated"
    )
    source.add_argument(
        "--schema", metavar="DDL", help="columns of the input and their types; a stream of files needs it"
    )
    source.add_argument(
        "--source-option",
        action="append",
        default=[],
        metavar="K=V",
        help="option of the source, such as header=true for csv",
    )
    source.add_argument("--table", metavar="NAME", help="table to read, instead of --input")
    source.add_argument(
        "--sql", metavar="QUERY", help="query whose rows are published; --input or --table is the view 'input' in it"
    )
    message = arguments.add_argument_group("message")
    message.add_argument(
        "--column",
        action="append",
        default=[],
        metavar="NAME=EXPR",
        help="column of the message as an SQL expression; or '*': the columns of the input too",
    )
    message.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="NAME=EXPR",
        help="application header as an SQL expression; NULL leaves it out",
    )
    message.add_argument(
        "--exchange",
        metavar="NAME",
        help="exchange to publish to (default: the default exchange, which routes by queue name)",
    )
    message.add_argument(
        "--routing-key", metavar="KEY", help="routing key of every message, instead of the column routing_key"
    )
    message.add_argument("--option", action="append", default=[], metavar="K=V", help="further option of the sink")
    query = arguments.add_argument_group("query")
    query.add_argument("--stream", action="store_true", help="publish new rows until stopped (default: once)")
    query.add_argument("--checkpoint", metavar="DIR", help="checkpoint location of a stream")
    query.add_argument("--name", metavar="NAME", help="name of the query")
    cli.add_trigger_arguments(query, "with --stream: publish the rows that are there")
    cli.add_spark_arguments(query)
    cli.add_watching_arguments(query)
    return arguments


def sink_options(arguments: argparse.Namespace) -> dict[str, str]:
    """The options of the sink from the command line."""
    return cli.connection_options(arguments, exchange=arguments.exchange, routingKey=arguments.routing_key)


def check_input(arguments: argparse.Namespace) -> None:
    """Check the input before Spark does, which would report errors only after a while, or not at all."""
    of_files = arguments.input or arguments.format is not None or arguments.schema is not None
    if arguments.table is not None and of_files:
        raise cli.CommandLineError("--table excludes --input, --format and --schema", "Give one or the other")
    kind = arguments.format or "parquet"
    if not arguments.input and arguments.table is None:
        if arguments.sql is None and (arguments.format is None or kind in _FILES):
            raise cli.CommandLineError("there is nothing to publish", "Add --input PATH, --table NAME or --sql QUERY")
        if arguments.sql is not None and arguments.format is None and (arguments.schema or arguments.source_option):
            raise cli.CommandLineError(
                "--schema and --source-option have no effect with --sql alone", "Add --input PATH"
            )
    if arguments.stream:
        check_stream(arguments, kind)
        return
    for flag, given in (
        ("--checkpoint", arguments.checkpoint), ("--available-now", arguments.available_now),
        ("--processing-time", arguments.processing_time),
    ):  # fmt: skip
        if given:
            raise cli.CommandLineError(f"{flag} is for streams only", "Add --stream, or remove it")


def check_stream(arguments: argparse.Namespace, kind: str) -> None:
    """Check the arguments that belong to ``--stream``."""
    if arguments.checkpoint is None:
        raise cli.CommandLineError("--stream needs --checkpoint", "Add --checkpoint DIR, which prevents duplicates")
    if len(arguments.input) > 1:
        raise cli.CommandLineError(
            "--stream takes one --input", "Name several directories by a pattern such as '/data/*'"
        )
    if not arguments.input and arguments.table is None and arguments.format is None:
        raise cli.CommandLineError(
            "--stream with --sql has no input", "Add --input PATH or --table NAME, which is the view 'input'"
        )
    if arguments.table is None and kind in _FILES - _FIXED_SCHEMA and arguments.schema is None:
        raise cli.CommandLineError(
            f"--stream of {kind} files has no schema", "Add --schema, because future files cannot be read now"
        )


def columns_of(arguments: argparse.Namespace) -> tuple[dict[str, str], dict[str, str], bool]:
    """Expressions of columns and of headers, and whether the input's own columns stay."""
    own = "*" in arguments.column or not arguments.column
    texts = [text for text in arguments.column if text != "*"]
    columns = cli.assignments(texts, "--column", "NAME=EXPRESSION, or '*'")
    headers = cli.assignments(arguments.header, "--header", "NAME=EXPRESSION")
    if headers and any(name.lower() == _HEADERS for name in columns):
        raise cli.CommandLineError(f"--header and --column {_HEADERS}=... exclude each other", "Give one of them")
    return columns, headers, own


def read(spark: SparkSession, arguments: argparse.Namespace) -> DataFrame:
    """Read the input."""
    rows: DataFrame | None = None
    if arguments.input or arguments.table is not None or arguments.format is not None:
        reader = spark.readStream if arguments.stream else spark.read
        reader = reader.options(**cli.pairs(arguments.source_option, "--source-option", side=None))
        if arguments.table is not None:
            rows = reader.table(arguments.table)
        else:
            reader = reader.format(arguments.format or "parquet")
            if arguments.schema is not None:
                reader = reader.schema(arguments.schema)
            paths = arguments.input[0] if len(arguments.input) == 1 else arguments.input or None
            rows = reader.load(paths)
    if arguments.sql is None:
        return cast("DataFrame", rows)
    if rows is not None:
        rows.createOrReplaceTempView("input")
    return spark.sql(arguments.sql)


def messages(rows: DataFrame, arguments: argparse.Namespace) -> DataFrame:
    """The rows with the columns of messages."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - --help and wrong options must not wait for it

    columns, headers, own = columns_of(arguments)
    if own and headers and any(name.lower() == _HEADERS for name in rows.columns):
        raise cli.CommandLineError(
            f"--header would replace the column {_HEADERS} of the input",
            "Write all headers with --header and name the other columns with --column, or drop that column with --sql",
        )
    made: dict[str, Column] = {name: f.expr(text) for name, text in columns.items()}
    if headers:
        made[_HEADERS] = f.struct(*(f.expr(text).alias(name) for name, text in headers.items()))
    if own:
        return rows.withColumns(made) if made else rows
    return rows.select(*(column.alias(name) for name, column in made.items()))


def write(
    spark: SparkSession, rows: DataFrame, options: dict[str, str], signals: cli.Signals, progress: cli.Progress
) -> int | None:
    """Publish the rows once; return their number, or None if a signal came before the end."""
    from pyspark.sql import Observation  # noqa: PLC0415
    from pyspark.sql import functions as f  # noqa: PLC0415

    observation = Observation("publish")
    counted = rows.observe(observation, f.count(f.lit(1)).alias("rows"))

    def action() -> int:
        counted.write.format("amqp").options(**options).mode("append").save()
        return int(observation.get["rows"])

    return cli.run_action(spark, action, signals, progress)


def published(count: int, options: SinkOptions) -> str:
    """What became of the rows. The number is that of the rows read: only the log has that of those discarded."""
    if options.on_unroutable == DISCARD:
        return f"{cli.counted(count, 'row', 'rows')} sent, unroutable ones are discarded,"
    return cli.counted(count, "message", "messages")


def run(arguments: argparse.Namespace, signals: cli.Signals) -> int:
    """Check everything that can be checked, then publish."""
    options = sink_options(arguments)
    check_input(arguments)
    columns_of(arguments)
    parsed = SinkOptions.parse(options, batch_write=not arguments.stream)
    cli.check_files(options)
    with cli.watched_session("publish", arguments) as (spark, watch):
        from amqp_spark.sink import check  # noqa: PLC0415

        signals.check()
        progress = watch.progress()
        with cli.spark_refuses():
            rows = messages(read(spark, arguments), arguments)
        check(options, rows.schema, batch_write=not arguments.stream)
        if not arguments.stream:
            count = write(spark, rows, options, signals, progress)
            if count is not None:
                say(f"publish: {published(count, parsed)} in {progress.seconds:.1f} s")
            return signals.exit_code or cli.EXIT_DONE
        with cli.spark_refuses():
            query = cli.writer_of(rows, arguments).format("amqp").options(**options).start()
        rest = "an interrupted batch is published again at the next start"
        code = cli.follow(query, signals, progress, rest=rest)
        say(f"publish: {progress.summary()}")
    return code


def main(argv: Sequence[str] | None = None, *, program: str = PROGRAM) -> int:
    """Run the job; return the exit code.

    Args:
        argv: arguments; ``None``: those of the process.
        program: as the user started it.
    """
    return cli.job("publish", parser(program), run, argv)
