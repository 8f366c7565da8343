"""A parser of command lines whose errors say what to do."""

from __future__ import annotations

import argparse
import difflib
import re
from typing import TYPE_CHECKING, NoReturn, Protocol

from amqp_core.standard_output import OutputFailed, say

if TYPE_CHECKING:
    from collections.abc import Sequence

_FLAG = re.compile(r"--[a-z][a-z0-9-]{0,40}")


class _Writable(Protocol):
    def write(self, text: str, /) -> object: ...


class Parser(argparse.ArgumentParser):
    """A parser whose errors say what to do. They repeat no value that stands where none is expected: it may be a
    password, or a URL that holds one."""

    def print_help(self, file: _Writable | None = None) -> None:
        """Print the help; a reader of standard output that has ended is no error, a full disk ends with 1."""
        if file is not None:
            super().print_help(file)
            return
        try:
            say(self.format_help().removesuffix("\n"))
        except OutputFailed as error:
            self.exit(1, f"{self.prog}: error: {error}\n")

    def error(self, message: str) -> NoReturn:
        """Print the usage and the error, and exit with 2."""
        kind, colon, rest = message.partition(": ")
        if kind == "unrecognized arguments" and colon:
            message = self._unrecognized(rest.split(" "))
        elif ": ignored explicit argument " in message:
            message = f"{message.partition(': ignored explicit argument ')[0]} takes no value"
        super().error(f"{message}. {self.prog} --help lists what is allowed")

    def _unrecognized(self, words: Sequence[str]) -> str:
        flags = sorted({word.partition("=")[0] for word in words if _FLAG.fullmatch(word.partition("=")[0])})
        if not flags:
            return "a value stands where none is expected; it belongs behind the name of its argument"
        near = [found[0] for flag in flags if (found := difflib.get_close_matches(flag, self._flags(), 1, 0.75))]
        hint = f"; similar is {', '.join(near)}" if near else ""
        return f"there is no argument {', '.join(flags)}{hint}"

    def _flags(self) -> list[str]:
        """The flags of this parser and of its commands."""
        parsers: list[argparse.ArgumentParser] = [self]
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                parsers += action.choices.values()
        return [flag for parser in parsers for flag in parser._option_string_actions]
