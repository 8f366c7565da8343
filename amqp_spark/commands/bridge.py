"""Move messages from queues of one broker to an exchange of another, with all their properties.

    amqp-spark bridge --from-url amqp://here/default --from-username guest --from-password-file /run/secrets/here \\
        --queue ticks \\
        --to-url amqps://there/default --to-username guest --to-password-file /run/secrets/there \\
        --exchange amq.topic --checkpoint /data/ticks.bridge

Bodies and application headers are passed on byte by byte, timestamps as the numbers that they are on the wire. A
message is accepted on the one broker after the other has it, so a crash may publish some twice and loses none. With
deliveryGuarantee=exactly-once in --from-option (with consumerId, spoolLocation) and in --to-option (with
transactionalId) none comes twice.

A message that its publisher has marked with discard_unroutable is dropped where nothing is bound on the other broker;
--without discard_unroutable makes that an error, as for all other messages.

Between AMQP 0-10 and 0-9-1 headers are converted: each keeps its type, or gets the next one that holds its value. The
job lists at its start which properties the other protocol lacks. A message that has one of them ends the query, so that
nothing is lost unnoticed; --to-option onUnsupported=drop leaves these properties out, --without NAME any one.

Expressions of --filter and --routing-key-expr see the columns of docs/columns.md (timestamp and expiration as
numbers, application_headers encoded), and 'headers', the application headers decoded: MAP<STRING,STRING>, or what
--headers says.

    --filter "headers['symbol'] = 'SAP' AND redelivered IS NOT TRUE"
    --headers 'symbol STRING, price DOUBLE' --filter 'headers.price > 100'

Messages that --filter excludes are accepted and dropped. To leave messages on the queue, use a message selector of the
broker: --from-option "selector=symbol = 'SAP'".

spark-submit runs the same, the package installed on all nodes or given by --py-files:

    spark-submit --py-files amqp_spark-*.whl jobs/bridge.py --from-url ...

Progress goes to standard error, one summary line to standard output.

exit codes: 0 done; 1 the query failed; 2 the command line or an option is wrong; 3 a broker could not be used, or did
not take a message (unreachable, login refused, queue or exchange missing, nothing bound, queue full); 130, 143 stopped
cleanly by SIGINT (Ctrl-C), SIGTERM.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Final

from amqp_core.standard_output import say
from amqp_spark import cli
from amqp_spark.errors import OptionError
from amqp_spark.options import CONNECTION, SINK, SOURCE, SinkOptions, SourceOptions

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

PROGRAM: Final = "amqp-spark bridge"
_HEADERS = "headers"
_AMQP_0_10 = "0-10"
LOST = {
    True: "type, cluster_id, and a message_id that is no UUID",
    False: "resume_id, resume_ttl, immediate, the exchange of reply_to, and for RabbitMQ expiration without ttl",
}
"""What the protocol of the broker to publish to lacks, if that is 0-10, or not."""


def parser(program: str = PROGRAM) -> argparse.ArgumentParser:
    """The command line of ``program``, as its help and errors name it."""
    tables = {
        "options of either broker, for --from-option and --to-option": CONNECTION,
        "options of the source, for --from-option": SOURCE,
        "options of the sink, for --to-option": SINK,
    }
    arguments = cli.job_parser(program, __doc__, tables)
    cli.add_connection_arguments(arguments, cli.FROM)
    source = arguments.add_argument_group("source")
    source.add_argument("--queue", action="append", default=[], help="queue to read; may be repeated", metavar="NAME")
    source.add_argument(
        "--from-option", action="append", default=[], metavar="K=V", help="further option of the source"
    )
    source.add_argument(
        "--filter", metavar="EXPR", help="SQL condition: only messages for which it is true are published"
    )
    source.add_argument(
        "--headers",
        metavar="DDL",
        help="headers and their types, such as 'symbol STRING, price DOUBLE', that expressions see in the column "
        "'headers' (default: all of them, as MAP<STRING,STRING>)",
    )
    cli.add_connection_arguments(arguments, cli.TO)
    sink = arguments.add_argument_group("sink")
    sink.add_argument(
        "--exchange",
        metavar="NAME",
        help="exchange to publish to (default: the default exchange, which routes by queue name)",
    )
    key = sink.add_mutually_exclusive_group()
    key.add_argument("--routing-key", metavar="KEY", help="routing key of every message, instead of its own")
    key.add_argument("--routing-key-expr", metavar="EXPR", help="routing key as an SQL expression, instead of its own")
    sink.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="COLUMN",
        help="property to leave out, such as user_id, which brokers may refuse from another user; may be repeated",
    )
    sink.add_argument("--to-option", action="append", default=[], metavar="K=V", help="further option of the sink")
    query = arguments.add_argument_group("query")
    query.add_argument("--checkpoint", metavar="DIR", help="checkpoint location (needed)")
    query.add_argument("--name", metavar="NAME", help="name of the query")
    cli.add_trigger_arguments(query)
    cli.add_spark_arguments(query)
    cli.add_watching_arguments(query)
    return arguments


def both_options(arguments: argparse.Namespace) -> tuple[dict[str, str], dict[str, str]]:
    """The options of source and sink from the command line."""
    source = cli.connection_options(arguments, cli.FROM, queue=",".join(arguments.queue) or None)
    sink = cli.connection_options(arguments, cli.TO, exchange=arguments.exchange, routingKey=arguments.routing_key)
    return source, sink


def check_both(source: dict[str, str], sink: dict[str, str]) -> tuple[SourceOptions, SinkOptions]:
    """Check the options of both sides; one error has the problems of both. Return the parsed options."""
    problems: list[str] = []
    parse_source = partial(SourceOptions.parse, streaming=True)
    for side, parse, options in (("from", parse_source, source), ("to", SinkOptions.parse, sink)):
        try:
            parse(options)
        except OptionError as error:
            problems += [f"{side}: {problem}" for problem in error.problems]
    if problems:
        raise OptionError(problems)
    return parse_source(source), SinkOptions.parse(sink)


def other_protocol(source: SourceOptions, sink: SinkOptions, signals: cli.Signals) -> str | None:
    """The protocol of the broker to publish to if the other one has another protocol; ``None``: they have the same.

    0-9 and 0-9-1 encode everything in the same way.
    """
    before, after = cli.protocol_of(source, signals), cli.protocol_of(sink, signals)
    if (before == _AMQP_0_10) == (after == _AMQP_0_10):
        return None
    fate = "are dropped" if sink.drops_unsupported else "end the query (--to-option onUnsupported=drop)"
    sys.stderr.write(f"bridge: from AMQP {before} to {after}: {LOST[after == _AMQP_0_10]} {fate}\n")
    return after


def converted(rows: DataFrame, protocol: str) -> DataFrame:
    """Rows of the other protocol for a sink of ``protocol``."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - --help and wrong options must not wait for it

    from amqp_spark.functions import convert_headers  # noqa: PLC0415

    if "application_headers" in rows.columns:
        rows = rows.withColumn("application_headers", convert_headers("application_headers", protocol))
    if {"ttl", "expiration"} <= {*rows.columns}:  # a broker of 0-10 computes the one of the other, which is enough
        rows = rows.withColumn("expiration", f.when(f.col("ttl").isNull(), f.col("expiration")))
    return rows


def has_expressions(arguments: argparse.Namespace) -> bool:
    """Whether SQL expressions use the messages."""
    return arguments.filter is not None or arguments.routing_key_expr is not None


def schema_to_read(arguments: argparse.Namespace, sink: SinkOptions) -> str:
    """The columns to read, as DDL: unused columns need not be decoded."""
    if has_expressions(arguments):
        return cli.exact_ddl()
    unused = {"queue", "position", "redelivered", *arguments.without}
    return cli.exact_ddl(unused if sink.exchange_from_column else unused | {"exchange"})


def messages(spark: SparkSession, arguments: argparse.Namespace, options: dict[str, str], schema: str) -> DataFrame:
    """The rows to publish."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - --help and wrong options must not wait for it

    rows = spark.readStream.format("amqp").options(**options).schema(schema).load()
    if has_expressions(arguments):
        rows = rows.withColumn(_HEADERS, decoded(arguments))  # Spark leaves it out where no expression uses it
    if arguments.filter is not None:
        rows = rows.filter(arguments.filter)
    if arguments.routing_key_expr is not None:
        rows = rows.withColumn("routing_key", f.expr(arguments.routing_key_expr).cast("string"))
    return rows.drop(_HEADERS, *arguments.without)


def decoded(arguments: argparse.Namespace) -> Column:
    """The column ``headers``."""
    from amqp_spark.functions import TEXTS, decode_headers  # noqa: PLC0415

    kind = TEXTS if arguments.headers is None else cli.schema_of(arguments.headers)
    return decode_headers("application_headers", kind)


def check_without(names: Sequence[str]) -> None:
    """Check that only properties are left out."""
    known = [name for name in cli.exact_types() if name != "body"] if names else []
    for name in names:
        if name not in known:
            raise cli.CommandLineError(f"--without {name} is not a property", f"Use one of {', '.join(known)}")


def run(arguments: argparse.Namespace, signals: cli.Signals) -> int:
    """Check everything that can be checked, then start the query and follow it."""
    source, sink = both_options(arguments)
    if arguments.checkpoint is None:
        raise cli.CommandLineError("--checkpoint is missing", "Add --checkpoint DIR, where Spark records its batches")
    if arguments.headers is not None and not has_expressions(arguments):
        raise cli.CommandLineError("--headers has no effect", "Add --filter or --routing-key-expr")
    check_without(arguments.without)
    parsed_source, parsed_sink = check_both(source, sink)
    cli.check_files(source)
    cli.check_files(sink)
    protocol = other_protocol(parsed_source, parsed_sink, signals)
    with cli.watched_session("bridge", arguments) as (spark, watch):
        from amqp_spark.sink import check  # noqa: PLC0415

        signals.check()
        with cli.spark_refuses():
            rows = messages(spark, arguments, source, schema_to_read(arguments, parsed_sink))
            if protocol is not None:
                rows = converted(rows, protocol)
        check(sink, rows.schema)
        progress = watch.progress()
        with cli.spark_refuses():
            query = cli.writer_of(rows, arguments).format("amqp").options(**sink).start()
        code = cli.follow(query, signals, progress)
        say(f"bridge: {progress.summary()}")
    return code


def main(argv: Sequence[str] | None = None, *, program: str = PROGRAM) -> int:
    """Run the job; return the exit code.

    Args:
        argv: arguments; ``None``: those of the process.
        program: as the user started it.
    """
    return cli.job("bridge", parser(program), run, argv)
