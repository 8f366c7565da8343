"""Show and repair the state of exactly-once on a broker.

    amqp-spark transactions amqp://broker/default --username guest --password-file /run/secrets/amqp \\
        --consumer-id ticks

With --consumer-id: the state of each queue of that consumer, its owned batches, and whether their files are in the
spool. With --transactional-id: the last decision of that writer, its markers and its branches. Without: all prepared
branches of the broker. The command takes no message, so it can be used while queries run.

On RabbitMQ the state of a consumer is in its spool: --consumer-id and --spool together show it, with the
acknowledgements that are in doubt, and how many messages came again and were recognised. The actions are not offered.

--export shows one message of an owned batch, and writes it to the file of --to. --skip writes it there, too, and then
removes it from its batch, so that a query continues after a message that stopped it (mode=FAILFAST). Stop the query
first.

--commit and --rollback resolve a prepared branch by hand, --forget deletes the state of the id. These and --skip ask
first, and need --yes without a terminal.

exit codes: 0 done; 1 failed: a branch is not prepared, a state is in use, the answer was no; 2 the command line or
an option is wrong, or the broker has no exactly-once; 3 the broker could not be used (unreachable, login refused), or
refused the action; 130 stopped by SIGINT (Ctrl-C).
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from amqp_core.standard_output import say
from amqp_spark import cli
from amqp_spark.connect import connect as connect_to
from amqp_spark.connect import require, require_kept_state
from amqp_spark.errors import OptionError, StateError, UnsupportedModeError
from amqp_spark.options.connection import CONNECTION, ConnectionSettings
from amqp_spark.options.kinds import directory_uri, identity
from amqp_spark.options.parsing import Given
from amqp_spark.state.xids import TooManyPrepared, parse_xid
from amqp_spark.timeouts import branch_timeout
from amqp_spark.transactions import actions, report
from amqp_spark.transactions.branch_status import look_at_branches, with_timeouts
from amqp_spark.transactions.consumer_status import look_at_consumer, look_at_spooled
from amqp_spark.transactions.writer_status import look_at_state, look_at_writer

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from amqp_core.address import ConnectOptions
    from amqp_core.api import Client, Xid

PROGRAM = "amqp-spark transactions"
_NAME = "transactions"
ACTIONS = "--commit, --rollback, --forget or --skip"
_EXIT_INTERRUPTED = 130
_CALL_SECONDS = 30.0
_MOST_ROWS = 1_000_000
"""Assumed rows of a branch to be resolved: they determine how long to wait for the broker."""


class Declined(Exception):
    """The question was answered with no."""


def parser(program: str = PROGRAM) -> argparse.ArgumentParser:
    """The command line of ``program``, as its help and errors name it."""
    tables = {"options of the connection, for --option": CONNECTION}
    arguments = cli.job_parser(program, __doc__, tables)
    cli.add_connection_arguments(arguments, positional=True)
    arguments.add_argument(
        "--option", action="append", default=[], metavar="K=V", help="further option of the connection"
    )
    what = arguments.add_argument_group("what to show")
    who = what.add_mutually_exclusive_group()
    who.add_argument("--consumer-id", metavar="ID", help="option consumerId of a source")
    who.add_argument("--transactional-id", metavar="ID", help="option transactionalId of a sink")
    what.add_argument(
        "--spool", metavar="URI", help="location of the spool as seen from this machine (default: as in the state)"
    )
    what.add_argument("--json", action="store_true", help="for programs")
    one = arguments.add_argument_group("one message of a batch that --consumer-id owns, at [EPOCH:]POSITION")
    which = one.add_mutually_exclusive_group()
    which.add_argument("--export", metavar="POSITION", help="show it, and write it to the file of --to, if given")
    which.add_argument("--skip", metavar="POSITION", help="write it to the file of --to, then set it aside")
    one.add_argument("--queue", metavar="NAME", help="queue of the message, if the consumer has several")
    one.add_argument("--to", metavar="FILE", type=Path, help="a new file (JSON)")
    mend = arguments.add_argument_group("actions")
    mend.add_argument("--commit", action="append", default=[], metavar="XID", help="commit this prepared branch")
    mend.add_argument("--rollback", action="append", default=[], metavar="XID", help="roll this prepared branch back")
    mend.add_argument("--forget", action="store_true", help="delete the state of the id from the broker")
    mend.add_argument("--yes", action="store_true", help="act without a question")
    return arguments


def connection(arguments: argparse.Namespace) -> ConnectOptions:
    """Connection options from the command line and the environment. Raises OptionError."""
    options = cli.connection_options(arguments)
    given = Given(CONNECTION, "connection", options)
    if given.problems:
        raise OptionError(given.problems)
    cli.check_files(options)
    settings = ConnectionSettings(**cast("dict[str, Any]", given.values))
    return dataclasses.replace(settings.connect_options(), client_name="amqp_spark transactions")


def check(arguments: argparse.Namespace) -> list[tuple[str, Xid]]:
    """Check the arguments as far as possible without the broker; return the branches to be resolved."""
    for flag, value, kind in (
        ("--consumer-id", arguments.consumer_id, identity()),
        ("--transactional-id", arguments.transactional_id, identity()),
        ("--spool", arguments.spool, directory_uri()),
    ):
        if value is not None:
            try:
                kind.parse(value)
            except ValueError as error:
                raise cli.CommandLineError(f"{flag} has a value that is not allowed", f"Use {error}") from None
    if arguments.forget and arguments.consumer_id is None and arguments.transactional_id is None:
        raise cli.CommandLineError("--forget has no owner", "Add --consumer-id ID or --transactional-id ID")
    if arguments.spool is not None and arguments.consumer_id is None:
        raise cli.CommandLineError("--spool is for consumers only", "Add --consumer-id ID, or remove --spool")
    check_message(arguments)
    try:
        wanted = [(actions.COMMIT, parse_xid(text)) for text in arguments.commit]
        wanted += [(actions.ROLLBACK, parse_xid(text)) for text in arguments.rollback]
    except StateError as error:
        raise cli.CommandLineError(str(error)) from None
    if len({str(xid) for _, xid in wanted}) < len(wanted):
        raise cli.CommandLineError("--commit and --rollback name a branch twice", "Name it once")
    acts = bool(wanted or arguments.forget or arguments.skip is not None)
    has_terminal = sys.stdin is not None and sys.stdin.isatty()  # none: it was closed before the program started
    if acts and not arguments.yes and not has_terminal:
        raise cli.CommandLineError("there is no terminal for a question", "Add --yes to act without a question")
    if arguments.yes and not acts:
        raise cli.CommandLineError("--yes has no effect", f"Add {ACTIONS}, or remove it")
    if acts and arguments.json:
        raise cli.CommandLineError("--json is for reports only", f"Remove it, or remove {ACTIONS}")
    return wanted


def check_message(arguments: argparse.Namespace) -> None:
    """Check --export, --skip and the arguments that belong to them."""
    flag, place = ("--skip", arguments.skip) if arguments.export is None else ("--export", arguments.export)
    if place is None:
        for other, value in (("--queue", arguments.queue), ("--to", arguments.to)):
            if value is not None:
                raise cli.CommandLineError(f"{other} has no effect", "Add --export or --skip")
        return
    if arguments.commit or arguments.rollback or arguments.forget or (arguments.export and arguments.json):
        raise cli.CommandLineError(
            f"{flag} excludes --commit, --rollback, --forget and --json", "Run the command once for each"
        )
    if arguments.consumer_id is None:
        raise cli.CommandLineError(f"{flag} has no consumer", "Add --consumer-id ID")
    if arguments.skip is not None and arguments.to is None:
        raise cli.CommandLineError("--skip needs a file for the message", "Add --to FILE")
    from amqp_spark.transactions.set_aside import MessagePosition  # noqa: PLC0415 - imports Arrow and Spark: others need not wait

    try:
        MessagePosition.parse(place)
    except ValueError as error:
        raise cli.CommandLineError(f"{flag} has {place[:60]!r}", f"Write {error}") from None


def run(arguments: argparse.Namespace) -> int:
    """Show the state, or perform the requested action."""
    wanted = check(arguments)
    options = connection(arguments)

    acts = wanted or arguments.forget or arguments.export is not None
    only_shows = not acts and arguments.skip is None

    def connect() -> Client:
        client = connect_to(options, call_timeout_s=_CALL_SECONDS)
        if client.capabilities.counts_deliveries and arguments.spool is not None and only_shows:
            return client  # the state is in the spool
        try:
            require_kept_state(client, changes_consumer=arguments.consumer_id is not None and not only_shows)
            require(client, "This command", "browse", "credit", "binding_queries")
        except UnsupportedModeError:
            client.close()
            raise
        client.transactions.silence_timeout_s = branch_timeout(_MOST_ROWS if wanted else 0)
        return client

    if arguments.export is not None or arguments.skip is not None:
        one_message(connect, arguments)
        return cli.EXIT_DONE
    if wanted or arguments.forget:
        act(connect, arguments, wanted)
        return cli.EXIT_DONE
    try:
        with connect() as client:
            lines, found = look(client, arguments)
    except TooManyPrepared:
        if arguments.transactional_id is not None or arguments.consumer_id is not None:
            with connect() as client:
                say("\n".join(look_without_list(client, arguments)))
        raise
    say(json.dumps(found, indent=1) if arguments.json else "\n".join(lines))
    return cli.EXIT_DONE


def look_without_list(client: Client, arguments: argparse.Namespace) -> Sequence[str]:
    """Show a consumer, or the decisions of a writer with branch names, if the broker cannot list prepared branches."""
    if arguments.consumer_id is not None:
        queues = look_at_consumer(client, arguments.consumer_id, spool=arguments.spool)
        if arguments.json:
            found = {"broker": client.peer} | report.consumer_json(arguments.consumer_id, queues)
            return [json.dumps(found, indent=1)]
        return report.consumer_lines(arguments.consumer_id, queues)
    writer, now = look_at_state(client, arguments.transactional_id), time.time()
    if arguments.json:
        return [json.dumps({"broker": client.peer} | report.writer_json(writer, now), indent=1)]
    return report.state_lines(writer)


def look(client: Client, arguments: argparse.Namespace) -> tuple[list[str], Mapping[str, Any]]:
    """Collect the state, as lines of text and for JSON."""
    now = time.time()
    broker = {"broker": client.peer}
    if arguments.transactional_id is not None:
        writer = look_at_writer(client, arguments.transactional_id)
        mine = len(writer.prepared)
        all_of_them = with_timeouts(client, (*writer.prepared, *writer.others))
        writer = dataclasses.replace(writer, prepared=all_of_them[:mine], others=all_of_them[mine:])
        return report.writer_lines(writer, now), broker | report.writer_json(writer, now)
    queues = []
    if arguments.consumer_id is not None and not client.capabilities.browse:
        queues = look_at_spooled(client, arguments.consumer_id, arguments.spool)
        found = report.consumer_json(arguments.consumer_id, queues)
        return report.consumer_lines(arguments.consumer_id, queues, spool=arguments.spool), broker | found
    if arguments.consumer_id is not None:
        queues = look_at_consumer(client, arguments.consumer_id, spool=arguments.spool)
    prepared = with_timeouts(client, look_at_branches(client).prepared)
    lines, found = report.branch_lines(prepared, now), {"prepared": report.branches_json(prepared, now)}
    if arguments.consumer_id is not None:
        lines = [*report.consumer_lines(arguments.consumer_id, queues), "", *lines]
        found = report.consumer_json(arguments.consumer_id, queues) | found
    else:
        lines += ["", "--consumer-id ID or --transactional-id ID shows the state of one consumer or writer"]
    return lines, broker | found


def act(connect: Callable[[], Client], arguments: argparse.Namespace, wanted: Sequence[tuple[str, Xid]]) -> None:
    """Resolve branches, then forget. No connection is open while a question waits for its answer."""
    if wanted:
        with connect() as client:
            resolutions = actions.choose(client, wanted)
        for each in resolutions:
            ask(each.question(), yes=arguments.yes)
            done = "committed" if each.action == actions.COMMIT else "rolled back"
            with begun(f"{each.prepared.text} was {done}"):
                actions.resolve(connect, each)
            say(f"{done} {each.prepared.text}")
    if arguments.forget:
        with connect() as client:
            if arguments.consumer_id is not None:
                forgetting = actions.forget_consumer(client, arguments.consumer_id, spool=arguments.spool)
            else:
                forgetting = actions.forget_writer(client, arguments.transactional_id)
        ask(forgetting.question(), yes=arguments.yes)
        with begun(f"{forgetting.whose} was forgotten"):
            actions.forget(connect, forgetting)
        say("\n  ".join([f"forgotten: {forgetting.whose}", *forgetting.left]))


def one_message(connect: Callable[[], Client], arguments: argparse.Namespace) -> None:
    """Show a message, write it to a file, set it aside."""
    from amqp_spark.transactions import set_aside  # noqa: PLC0415 - as above

    place = set_aside.MessagePosition.parse(arguments.skip or arguments.export)
    with connect() as client:
        message = set_aside.find(client, arguments.consumer_id, arguments.queue, place, spool=arguments.spool)
    say("\n".join(set_aside.lines(message)))
    skips = arguments.skip is not None
    if skips and message.is_set_aside:
        say("it is set aside already; nothing was done")
        return
    if skips:
        ask(f"set it aside: it yields no row any more, and {arguments.to} is the only copy", yes=arguments.yes)
    if arguments.to is not None:
        set_aside.write(message, arguments.to)
        say(f"written to {arguments.to}")
    if skips:
        with begun("the message was set aside"):
            set_aside.skip(connect, message)
        say(f"set aside: {message.text}")


@contextmanager
def begun(what: str) -> Iterator[None]:
    """An action: an interruption that comes before the broker's answer leaves open whether it was done."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        stopped.add_note(f"whether {what} is unknown: the command without an action shows it")
        raise


def ask(question: str, *, yes: bool) -> None:
    """Print the question and read the answer, unless ``yes``; raise Declined for any answer but yes."""
    sys.stderr.write(f"{question}\n")
    if yes:
        return
    sys.stderr.write("Do it? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise Declined


def main(argv: Sequence[str] | None = None, *, program: str = PROGRAM) -> int:
    """Run the command line; return the exit code.

    Args:
        argv: arguments; ``None``: those of the process.
        program: as the user started it.
    """
    arguments = parser(program).parse_args(argv)
    try:
        return run(arguments)
    except KeyboardInterrupt as stopped:
        fate = "; ".join(getattr(stopped, "__notes__", ())) or "only the actions reported above were done"
        sys.stderr.write(f"\n{_NAME}: stopped by SIGINT; {fate}\n")
        return _EXIT_INTERRUPTED
    except Declined:
        sys.stderr.write(f"{_NAME}: not done\n")
        return cli.EXIT_FAILED
    except Exception as error:  # noqa: BLE001 - everything becomes a message and an exit code
        return cli.fail(_NAME, error)


if __name__ == "__main__":
    sys.exit(main(program="python -m amqp_spark.transactions"))
