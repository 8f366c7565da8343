"""The command line of a job: the arguments shared by several jobs, and their translation to options."""

from __future__ import annotations

import argparse
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from amqp_core.command_line import Parser
from amqp_spark.cli.errors import CommandLineError
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.options import CONNECTION, SINK, SOURCE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from amqp_spark.options import Option

_FILES = frozenset({"passwordFile", "tls.caFile", "tls.certFile", "tls.keyFile"})
_NAMES = {option.name.lower(): option for option in (*CONNECTION, *SOURCE, *SINK)}
# The shape of what Spark reads as the interval of a trigger; a month, or less than nothing, it refuses itself.
_UNIT: Final = "year|month|week|day|hour|minute|second|millisecond|microsecond"
_INTERVAL: Final = re.compile(
    rf"\s*(?:interval\s+)?(?:[+-]?\s*(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s+(?:{_UNIT})s?(?:\s+|$))+",
    re.IGNORECASE | re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Side:
    """One of the brokers that a job uses: the prefixes of its arguments and environment variables."""

    flag: str
    environment: str
    title: str

    @property
    def option(self) -> str:
        """The argument that takes further options of this side."""
        return f"--{self.flag}option"


HERE = Side("", "AMQP_", "broker")
FROM = Side("from-", "AMQP_FROM_", "broker to read from")
TO = Side("to-", "AMQP_TO_", "broker to publish to")


def add_connection_arguments(parser: argparse.ArgumentParser, side: Side = HERE, *, positional: bool = False) -> None:
    """Add ``--url`` (with ``positional`` an argument without a flag), ``--username``, ``--password-file``.

    Environment variables replace missing arguments.
    """
    group = parser.add_argument_group(side.title)
    url, username, password = (f"{side.environment}{name}" for name in ("URL", "USERNAME", "PASSWORD"))
    text, default = f"amqp[s]://host[:port]/vhost (or ${url})", os.environ.get(url)
    if positional:
        group.add_argument("url", metavar="URL", nargs="?", default=default, help=text)
    else:
        group.add_argument(f"--{side.flag}url", metavar="URL", default=default, help=text)
    group.add_argument(
        f"--{side.flag}username", metavar="NAME", default=os.environ.get(username), help=f"login name (or ${username})"
    )
    group.add_argument(
        f"--{side.flag}password-file",
        metavar="FILE",
        help=f"file that holds the password, read at every connection (or ${password}, the password itself; there is "
        "no way to give it on the command line, where all users of the machine could read it)",
    )


def add_trigger_arguments(group: argparse._ArgumentGroup, available: str = "read the available messages") -> None:
    """Add ``--available-now`` and ``--processing-time``."""
    trigger = group.add_mutually_exclusive_group()
    trigger.add_argument("--available-now", action="store_true", help=f"{available}, then end")
    trigger.add_argument("--processing-time", metavar="TIME", help="pause between batches, such as '10 seconds'")


def add_spark_arguments(group: argparse._ArgumentGroup) -> None:
    """Add ``--master``, ``--conf``, ``--verbose``."""
    group.add_argument("--master", metavar="URL", help="Spark master (default: that of spark-submit, or local[*])")
    group.add_argument("--conf", action="append", default=[], metavar="K=V", help="Spark configuration")
    group.add_argument("--verbose", action="store_true", help="also the log of Spark: warnings, and traces of failures")


def credentials(arguments: argparse.Namespace, side: Side = HERE) -> dict[str, str]:
    """Return the login as options. The password comes from a file or from the environment."""
    found: dict[str, str] = {}
    username, password_file = _given(arguments, side, "username"), _given(arguments, side, "password_file")
    if username is not None:
        found["username"] = username
    password = os.environ.get(f"{side.environment}PASSWORD")
    if password_file is not None:
        found["passwordFile"] = password_file
    elif password is not None:
        found["password"] = password
    return found


def connection_options(arguments: argparse.Namespace, side: Side = HERE, **named: str | None) -> dict[str, str]:
    """The options of one side: URL, login, those with an argument of their own (``named``), and the further ones.

    Raises:
        CommandLineError: an option is given in two ways.
    """
    options = pairs(_given(arguments, side, "option") or (), side.option, side)
    for key, value in {"url": _given(arguments, side, "url"), **named, **credentials(arguments, side)}.items():
        if value is not None:
            if key in options:
                repeated = f"{side.option} {key}=... repeats another argument or a variable {side.environment}*"
                raise CommandLineError(repeated, "Give it once")
            options[key] = value
    return options


def _given(arguments: argparse.Namespace, side: Side, name: str) -> Any:
    return getattr(arguments, f"{side.flag}{name}".replace("-", "_"))


def check_files(options: Mapping[str, str]) -> None:
    """Check that the driver can read the files named by options, before the slow start of Spark.

    Option names are compared without case, as everywhere.
    """
    for key, path in options.items():
        option = _NAMES.get(key.lower())
        if option is None or option.name not in _FILES:
            continue
        try:
            with Path(path).open("rb"):
                pass
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            problem = SparkCondition.FILE_NOT_READABLE(option=option.name, path=path, reason=reason)
            raise CommandLineError(problem) from error


def check_query(arguments: argparse.Namespace) -> None:
    """Check what Spark and its formats are given, as far as that is possible before the slow start of Spark.

    Raises:
        CommandLineError: a setting is none, a name or path is empty, or ``--processing-time`` is no time.
    """
    pairs(getattr(arguments, "conf", ()), "--conf")
    for flag in ("--sink-option", "--source-option"):
        pairs(getattr(arguments, flag[2:].replace("-", "_"), ()), flag, side=None)
    for flag in ("--name", "--checkpoint", "--output", "--input"):
        given = getattr(arguments, flag[2:], None)
        if any(not text.strip() for text in ([given] if isinstance(given, str) else given or ())):
            remedy = "Give a value, or leave it out" if flag == "--name" else "Give a value"
            raise CommandLineError(f"{flag} is empty", remedy)
    time = getattr(arguments, "processing_time", None)
    if time is not None and not _INTERVAL.fullmatch(time):
        raise CommandLineError(f"--processing-time {time[:60]!r} is no time", "Write for instance '10 seconds'")


def assignments(texts: Iterable[str], flag: str, what: str = "key=value") -> dict[str, str]:
    """``key=value`` arguments as a dictionary; the first ``=`` ends the key."""
    found: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key or "://" in key:  # nothing of it is shown: it may be a password
            raise CommandLineError(f"A value of {flag} is not of the form {what}", f"Write {flag} {what}")
        if key in found:
            raise CommandLineError(f"{flag} {key}=... is given twice", "Give it once")
        found[key] = value
    return found


def pairs(texts: Iterable[str], flag: str, side: Side | None = HERE) -> dict[str, str]:
    """Options as a dictionary. Passwords are refused unread. Without ``side`` the options belong to another format."""
    given = tuple(texts)
    for text in given:
        key, separator, _ = text.partition("=")
        option = _NAMES.get(key.lower())
        if separator and option is not None and option.secret:
            remedy = (
                "Make it a table of Spark's catalog, and use --table"
                if side is None
                else f"Use --{side.flag}password-file or the environment variable {side.environment}PASSWORD"
            )
            raise CommandLineError(f"{flag} {key}=... shows the password to all users of this machine", remedy)
    return assignments(given, flag)


def job_parser(program: str, text: str | None, tables: Mapping[str, Sequence[Option]]) -> argparse.ArgumentParser:
    """A parser without arguments; its help ends with the tables of options, each under the argument that takes them."""
    # pairs() refuses secrets
    shown = {title: [option for option in table if not option.secret] for title, table in tables.items()}
    width = max(len(option.name) for table in shown.values() for option in table)
    parts = []
    for title, table in shown.items():
        lines = [f"  {option.name:<{width}}  {option.kind.allowed} (default: {option.default})" for option in table]
        parts.append("\n".join([f"{title}, as name=value:", *lines]))
    epilog = "\n\n".join([*parts, "docs/options.md describes them."])
    formatter = argparse.RawDescriptionHelpFormatter
    return Parser(prog=program, description=text, epilog=epilog, formatter_class=formatter, allow_abbrev=False)
