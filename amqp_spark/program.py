"""``amqp-spark``: one program for all commands of this package. Each command is a row of :data:`COMMANDS`.

A command is imported when it is called: help and version import neither Spark nor Arrow.
"""

from __future__ import annotations

import difflib
import importlib
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from amqp_core.standard_output import OutputFailed, replace_closed_error, say
from amqp_spark import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NAME: Final = "amqp-spark"
_EXIT_FAILED: Final = 1
_EXIT_INTERRUPTED: Final = 130
_SHOWN: Final = re.compile(r"[\w.-]{1,60}")
"""What an error repeats of the command line: anything else may be a URL with a password in it."""

_MOVE: Final = "move messages with Spark"
_INSPECT: Final = "inspect and repair"
_TRY: Final = "try it on this machine"


@dataclass(frozen=True, slots=True)
class Command:
    """A sub-command.

    Args:
        name: that the user types.
        group: heading in the help.
        module: imported when the command is called. Its ``main(argv)`` gets the arguments behind the name, and returns
            the exit code.
        summary: one line of help.
    """

    name: str
    group: str
    module: str
    summary: str

    def run(self, arguments: Sequence[str]) -> int:
        """Import the module, and run the command; return its exit code."""
        main: Callable[[Sequence[str]], int] = importlib.import_module(self.module).main
        return main(arguments)


COMMANDS: Final = (
    Command("ingest", _MOVE, "amqp_spark.commands.ingest", "stream queues into files, tables, or other sinks of Spark"),
    Command("publish", _MOVE, "amqp_spark.commands.publish", "publish files, a table or a query to an exchange"),
    Command("bridge", _MOVE, "amqp_spark.commands.bridge", "move messages to an exchange of another broker"),
    Command("drain", _MOVE, "amqp_spark.commands.drain", "empty queues into files, and report their contents"),
    Command("transactions", _INSPECT, "amqp_spark.transactions.__main__", "show and repair the state of exactly-once"),
    Command(
        "doctor",
        _INSPECT,
        "amqp_spark.diagnosis.command",
        "say what works with a broker, a login and Spark, and what to do",
    ),
    Command("broker", _TRY, "amqp_spark.commands.broker", "run the embedded broker, or keep its users"),
    Command("demo", _TRY, "amqp_spark.demo.__main__", "stream sample messages through the embedded broker and Spark"),
)

_EXIT_CODES: Final = """\
exit codes of all commands: 0 done; 1 it failed; 2 the command line or an option is wrong; 3 the broker could not be
used; 130, 143 stopped by SIGINT (Ctrl-C), SIGTERM."""


def help_text() -> str:
    """The help of the program: one line for each command."""
    width = max(len(command.name) for command in COMMANDS)
    lines = [f"usage: {NAME} COMMAND [ARGUMENT ...]", "", "Apache Spark and AMQP brokers, from the command line."]
    group = None
    for command in COMMANDS:
        if command.group != group:
            group = command.group
            lines += ["", f"{group}:"]
        lines.append(f"  {command.name:<{width}}  {command.summary}")
    lines += [
        "", "options:", f"  {'-h, --help':<{width}}  show this help; {NAME} COMMAND --help shows that of a command",
        f"  {'--version':<{width}}  show the version", "", _EXIT_CODES,
    ]  # fmt: skip
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name; return its exit code.

    Args:
        argv: name of the command and its arguments; ``None``: those of the process.
    """
    given = sys.argv[1:] if argv is None else argv
    replace_closed_error()
    try:
        return _run(given)
    except KeyboardInterrupt:  # before the command has its own handler
        sys.stderr.write(f"\n{NAME}: stopped by SIGINT\n")
        return _EXIT_INTERRUPTED
    except OutputFailed as error:
        sys.stderr.write(f"{NAME}: error: {error}\n")
        return _EXIT_FAILED


def _run(given: Sequence[str]) -> int:
    first, rest = (given[0], given[1:]) if given else ("", ())
    if first in {"-h", "--help"}:
        say(help_text())
        return 0
    if first == "--version":
        say(f"{NAME} {__version__}")
        return 0
    command = next((command for command in COMMANDS if command.name == first), None)
    if command is not None:
        return command.run(rest)
    from amqp_spark.cli.errors import CommandLineError, fail  # noqa: PLC0415 - imports the clients

    return fail(NAME, CommandLineError(*_problem(first, given=bool(given))))


def _problem(first: str, *, given: bool) -> tuple[str, str]:
    """What is wrong with the first argument, and what to do."""
    names = [command.name for command in COMMANDS]
    known = f"{', '.join(names)}; {NAME} --help describes them"
    if not given:
        return "no command is given", f"Use one of {known}"
    if first.startswith("-"):
        flag = first.partition("=")[0]
        what = repr(flag) if _SHOWN.fullmatch(flag) else "the first argument"
        return f"{what} is no option of {NAME} itself", f"Use --help or --version, or give a command first: {known}"
    if not _SHOWN.fullmatch(first):
        return "the first argument is no command", f"Use one of {known}"
    near = difflib.get_close_matches(first.lower(), names, n=1)
    hint = f"Use {near[0]!r} instead, or one of" if near else "Use one of"
    return f"there is no command {first!r}", f"{hint} {known}"
