"""Say in one screen what a broker, a login and a Spark can do together, and what to do where something is wrong.

    amqp-spark doctor amqp://broker/default --username guest --password-file /run/secrets/amqp --queue ticks

Nothing of yours is touched: no message is read or published, nothing is bound. What the login may do is tried on
temporary exclusive queues, which end with their session. docs/doctor.md explains every finding.

exit codes: 0 nothing is wrong (there may be warnings); 1 Spark or its workers cannot be used, or an unexpected error; 2
the command line or an option is wrong, or the broker does not offer exactly-once (--exactly-once); 3 the broker
could not be used (unreachable, certificate, login or virtual host refused, queue or exchange missing, no right); 130
stopped by SIGINT (Ctrl-C), after what was found so far. Of several errors the first one counts.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from amqp_core.standard_output import say
from amqp_spark import cli
from amqp_spark.demo.java import require_java
from amqp_spark.diagnosis.examination import examine, report_of, settings_of
from amqp_spark.diagnosis.findings import EXIT_INTERRUPTED
from amqp_spark.diagnosis.site import Site
from amqp_spark.options.connection import CONNECTION

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

PROGRAM = "amqp-spark doctor"


def parser(program: str = PROGRAM) -> argparse.ArgumentParser:
    """The command line."""
    arguments = cli.job_parser(program, __doc__, {"options of the connection, for --option": CONNECTION})
    cli.add_connection_arguments(arguments, positional=True)
    arguments.add_argument(
        "--option", action="append", default=[], metavar="K=V", help="further option of the connection"
    )
    what = arguments.add_argument_group("what to look at")
    what.add_argument("--queue", action="append", default=[], metavar="Q", help="a queue to be read (repeatable)")
    what.add_argument(
        "--exchange", action="append", default=[], metavar="X", help="an exchange to be written to (repeatable)"
    )
    what.add_argument("--exactly-once", action="store_true", help="it is an error if exactly-once is not possible")
    what.add_argument("--spark", action="store_true", help="start Spark, to look at its workers and at format('amqp')")
    what.add_argument("--master", metavar="URL", help="Spark master, with --spark (default: local[*])")
    arguments.add_argument("--json", action="store_true", help="for programs")
    return arguments


def run(arguments: argparse.Namespace) -> int:
    """Examine, and print the report."""
    if arguments.master is not None and not arguments.spark:
        raise cli.CommandLineError("--master has no effect", "Add --spark, or remove it")
    for flag, names in (("--queue", arguments.queue), ("--exchange", arguments.exchange)):
        if any(len(name.encode(errors="replace")) > 255 for name in names) or (flag == "--queue" and "" in names):
            raise cli.CommandLineError(f"{flag} has a name that is empty or too long", "Give 1 to 255 bytes of UTF-8")
    options = cli.connection_options(arguments)
    settings = settings_of(options)
    cli.check_files(options)
    site = Site(
        settings.connect_options(),
        queues=tuple(dict.fromkeys(arguments.queue)),
        exchanges=tuple(dict.fromkeys(arguments.exchange)),
        exactly_once=arguments.exactly_once,
    )
    started: list[SparkSession] = []

    def session() -> SparkSession | None:
        if not arguments.spark:
            return None
        from amqp_spark.cli.spark import spark_session  # noqa: PLC0415 - only with --spark

        require_java()
        conf = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
        spark, new = spark_session("amqp-spark doctor", conf, arguments.master)
        if new:
            started.append(spark)
        return spark

    report = report_of(site)
    try:
        try:
            examine(report, site, session=session)
        finally:
            for spark in started:
                spark.stop()
    except KeyboardInterrupt:
        report.is_stopped = True
        raise
    finally:
        plain = not _shows_symbols()
        say(report.json(plain=plain) if arguments.json else "\n".join(report.lines(plain=plain)))
    return report.exit_code


def _shows_symbols() -> bool:
    """Whether standard output can show the symbols of the report."""
    try:
        "✓✗–→".encode(getattr(sys.stdout, "encoding", None) or "ascii")  # noqa: RUF001 - a dash
    except UnicodeEncodeError:
        return False
    return True


def main(argv: Sequence[str] | None = None, *, program: str = PROGRAM) -> int:
    """Run the command line; return the exit code.

    Args:
        argv: arguments; ``None``: those of the process.
        program: as the user started it.
    """
    arguments = parser(program).parse_args(argv)
    try:
        return run(arguments)
    except KeyboardInterrupt:
        sys.stderr.write(f"\n{program}: stopped by SIGINT\n")
        return EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001 - everything becomes a message and an exit code
        return cli.fail(program, error)
