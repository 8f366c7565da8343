"""Shared code of the commands: command line, credentials, session, signals, progress, exit codes.

Exit codes are for schedulers: 0 done, 1 the query failed, 2 the command line or an option is wrong, or the broker does
not offer what it asks for, 3 the broker could not be used or did not take the messages (unreachable, login refused,
queue or exchange missing, queue full, ...), 130 and 143 stopped by SIGINT and SIGTERM.
"""

from __future__ import annotations

from amqp_spark.cli.arguments import (
    FROM,
    TO,
    add_connection_arguments,
    add_spark_arguments,
    add_trigger_arguments,
    assignments,
    check_files,
    connection_options,
    credentials,
    job_parser,
    pairs,
)
from amqp_spark.cli.errors import (
    EXIT_BROKER,
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_OPTIONS,
    CommandLineError,
    explain,
    fail,
    spark_refuses,
)
from amqp_spark.cli.progress import Progress, counted
from amqp_spark.cli.protocol import protocol_of
from amqp_spark.cli.running import Signals, Stopped, follow, job, run_action
from amqp_spark.cli.spark import exact_ddl, exact_types, schema_of, writer_of
from amqp_spark.cli.watching import Watch, add_watching_arguments, watched_session

__all__ = [
    "EXIT_BROKER",
    "EXIT_DONE",
    "EXIT_FAILED",
    "EXIT_OPTIONS",
    "FROM",
    "TO",
    "CommandLineError",
    "Progress",
    "Signals",
    "Stopped",
    "Watch",
    "add_connection_arguments",
    "add_spark_arguments",
    "add_trigger_arguments",
    "add_watching_arguments",
    "assignments",
    "check_files",
    "connection_options",
    "counted",
    "credentials",
    "exact_ddl",
    "exact_types",
    "explain",
    "fail",
    "follow",
    "job",
    "job_parser",
    "pairs",
    "protocol_of",
    "run_action",
    "schema_of",
    "spark_refuses",
    "watched_session",
    "writer_of",
]
