"""Standard output of a program: what its encoding lacks is escaped, and a reader that has ended is no error."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path


class OutputFailed(OSError):
    """Standard output cannot be written, as on a full disk; the text is for the user."""

    def __str__(self) -> str:
        return f"Cannot write on standard output: {self.strerror}. Free its disk, or send it elsewhere."


def say(text: str) -> None:
    """Print text and a line end on standard output, and flush: it is seen even if the program fails next.

    Nothing happens where standard output is closed, or is a pipe whose reader has ended (``| head -1``): the program
    has done its work all the same, and its exit code says so.

    Args:
        text: characters that the encoding of standard output lacks are shown as ``\\u…``.

    Raises:
        OutputFailed: it cannot be written for another reason, such as a full disk. What is printed later goes nowhere.
    """
    stream = sys.stdout
    if stream is None:  # closed before the program started
        return
    if stream.encoding:  # a file in memory has none
        text = text.encode(stream.encoding, "backslashreplace").decode(stream.encoding)
    try:
        stream.write(f"{text}\n")
        stream.flush()
    except BrokenPipeError:
        _discard_rest()
    except OSError as error:
        _discard_rest()
        raise OutputFailed(error.errno, error.strerror) from error


def replace_closed_error() -> None:
    """Let standard error go nowhere if it was closed before the program started (``2>&-``): else it is no file."""
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - open as long as the process


def _discard_rest() -> None:
    """Let what is left in the buffer go nowhere: Python would try again at its exit, and end with 120."""
    with suppress(OSError, ValueError):  # a test's file without a descriptor
        descriptor = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(descriptor, sys.stdout.fileno())
        finally:
            os.close(descriptor)
