"""``python -m amqp_core.broker user``: the users of a file."""

from __future__ import annotations

import getpass
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from amqp_core.address import ConnectOptions, is_utf8, without_line_end
from amqp_core.broker import users_file
from amqp_core.broker.errors import UnusableFile
from amqp_core.broker.passwords import HashedPassword, hashed
from amqp_core.broker.rights import EVERYTHING, NOTHING, Grants, Patterns, Right
from amqp_core.broker.users_file import User
from amqp_core.command_line import Parser
from amqp_core.errors import AuthenticationFailed, UsageError
from amqp_core.sasl import saslprep
from amqp_core.standard_output import OutputFailed, say

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

WRONG_ARGUMENTS: Final = 2
UNUSABLE: Final = 3
INTERRUPTED: Final = 130
PROGRAM: Final = "python -m amqp_core.broker user"
_MOST_NAME_BYTES: Final = 255


class _Wrong(Exception):
    """What is wrong with the arguments, and what to do."""


def parser(program: str = PROGRAM) -> argparse.ArgumentParser:
    """The parser of the sub-command of ``program``, as its help and errors name it."""
    made = Parser(
        prog=program,
        description="Keeps the file of users for --users of the broker, which reads it when it starts.",
    )
    commands = made.add_subparsers(dest="command", required=True)
    # no abbreviations: --password would be one, and passwords do not belong into arguments
    add = commands.add_parser(
        "add", help="add a user", description="Adds a user; makes the file if there is none. ", allow_abbrev=False
    )
    rights = commands.add_parser("rights", help="change what a user may do", allow_abbrev=False)
    remove = commands.add_parser("remove", help="remove a user", allow_abbrev=False)
    show = commands.add_parser("list", help="list users and their rights", allow_abbrev=False)
    for each in (add, rights, remove, show):
        each.add_argument("--users", type=Path, required=True, metavar="FILE", help="the file of users")
    for each in (add, rights, remove):
        each.add_argument("name", metavar="NAME", help="name of the user")
    password = add.add_mutually_exclusive_group()
    password.add_argument(
        "--password-file", metavar="FILE", help="file with the password; without it, it is asked for, or read from "
        "standard input if that is no terminal",
    )  # fmt: skip
    password.add_argument(
        "--no-password", action="store_true", help="the user logs in with a client certificate (EXTERNAL) only"
    )
    for each in (add, rights):
        each.description = (
            f"{each.description or ''}Rights are regular expressions, found anywhere in a name unless ^ and $ bind "
            "them, as RabbitMQ has it. Without any a user may do everything; of three, those not given allow nothing."
        )
        each.add_argument(
            "--virtual-host", metavar="NAME", help="the rights are for this virtual host only; without it for all that "
            "have none of their own",
        )  # fmt: skip
        each.add_argument("--configure", metavar="REGEX", help="queues and exchanges that it may declare and delete")
        each.add_argument("--write", metavar="REGEX", help="exchanges that it may publish to, queues that it may bind")
        each.add_argument("--read", metavar="REGEX", help="queues that it may consume, exchanges that it may bind to")
    return made


def main(arguments: Sequence[str], program: str = PROGRAM) -> int:
    """Run the sub-command; return its exit code."""
    given = parser(program).parse_args(arguments)
    try:
        _check_text(given)
        _COMMANDS[given.command](given)
    except _Wrong as wrong:
        print(wrong, file=sys.stderr)  # noqa: T201 - a program
        return WRONG_ARGUMENTS
    except (UnusableFile, AuthenticationFailed, OutputFailed) as error:
        print(error, file=sys.stderr)  # noqa: T201 - a program
        return UNUSABLE
    except KeyboardInterrupt:
        print(file=sys.stderr)  # noqa: T201 - a program; the cursor is behind the question for a password
        return INTERRUPTED
    return 0


def _add(given: argparse.Namespace) -> None:
    _check_name(given.name)
    patterns = _patterns(given)
    _check_new(users_file.load(given.users, missing_ok=True), given.name)
    secret = None if given.no_password else _secret(given.password_file)
    with users_file.changing(given.users, missing_ok=True) as users:
        _check_new(users, given.name)  # others may have changed the file while the password was asked for
        users[given.name] = User(secret, _granted(Grants(), patterns, given.virtual_host))


def _rights(given: argparse.Namespace) -> None:
    patterns = _patterns(given)
    with users_file.changing(given.users) as users:
        user = _existing(users, given.name)
        assert user.grants is not None
        users[given.name] = User(user.secret, _granted(user.grants, patterns, given.virtual_host))


def _remove(given: argparse.Namespace) -> None:
    with users_file.changing(given.users) as users:
        _existing(users, given.name)
        del users[given.name]


def _list(given: argparse.Namespace) -> None:
    for name, user in sorted(users_file.load(given.users).items()):
        assert user.grants is not None
        places = {f"in {host!r}": patterns for host, patterns in user.grants.by_host.items()}
        if user.grants.everywhere is not None:
            places["elsewhere" if places else "everywhere"] = user.grants.everywhere
        login = "certificate" if user.secret is None else "password"
        say(f"{name}: logs in with a {login}")
        for place, patterns in places.items():
            rights = ", ".join(f"{right.value} {getattr(patterns, right.value)!r}" for right in Right)
            say(f"  {place}: {rights}")


_COMMANDS: Final[dict[str, Callable[[argparse.Namespace], None]]] = {
    "add": _add,
    "rights": _rights,
    "remove": _remove,
    "list": _list,
}


def _check_new(users: dict[str, User], name: str) -> None:
    if name in users:
        raise _Wrong(f"There is a user {name!r} already. Remove it first.")


def _existing(users: dict[str, User], name: str) -> User:
    if name not in users:
        raise _Wrong(f"There is no user {name!r}. See those that there are: user list.")
    return users[name]


def _check_text(given: argparse.Namespace) -> None:
    if not all(is_utf8(value) for value in vars(given).values() if isinstance(value, str)):
        raise _Wrong("An argument is not text in UTF-8. Write it so.")


def _check_name(name: str) -> None:
    try:
        prepared = saslprep(name, "user name")
    except UsageError:
        prepared = ""
    if not name or prepared != name or len(name.encode()) > _MOST_NAME_BYTES:
        raise _Wrong(
            f"{name!r} cannot be the name of a user. Give text of up to {_MOST_NAME_BYTES} bytes without characters "
            "that SASL does not allow or writes otherwise (RFC 4013)."
        )


def _patterns(given: argparse.Namespace) -> Patterns:
    texts = {right.value: getattr(given, right.value) for right in Right}
    missing = EVERYTHING if all(text is None for text in texts.values()) else NOTHING
    try:
        return Patterns(**{name: missing if text is None else text for name, text in texts.items()})
    except re.error as error:
        raise _Wrong(f"A right is no regular expression: {error}. Correct it.") from error


def _granted(grants: Grants, patterns: Patterns, virtual_host: str | None) -> Grants:
    if virtual_host is None:
        return Grants(patterns, grants.by_host)
    return Grants(grants.everywhere, {**grants.by_host, virtual_host: patterns})


def _secret(password_file: str | None) -> HashedPassword:
    password = _password(password_file)
    try:
        prepared = saslprep(password, "password") if is_utf8(password) else ""
        if not prepared or "\0" in password:
            raise _Wrong("The password is empty, or no text in UTF-8. Give another.")
        return hashed(password)
    except UsageError as error:
        raise _Wrong(str(error)) from error


def _password(password_file: str | None) -> str:
    if password_file is not None:
        options = ConnectOptions(hosts=(("localhost", 0),), password_file=password_file)
        return options.read_password() or ""
    if sys.stdin is None:  # it was closed before the program started
        raise _Wrong("No password is given. Give --password-file or --no-password, or open standard input.")
    if not sys.stdin.isatty():
        line = sys.stdin.buffer.readline().decode("utf-8", "surrogateescape")
        return without_line_end(line)
    try:
        password = getpass.getpass("Password: ")
        again = getpass.getpass("Once more: ")
    except EOFError:
        raise _Wrong("\nNo password is given. Enter one, or give --password-file or --no-password.") from None
    if again != password:
        raise _Wrong("The passwords differ. Try again.")
    return password
