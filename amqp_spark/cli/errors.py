"""Error messages for the user, and their exit codes."""

from __future__ import annotations

import importlib
import re
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from amqp_core import errors as core_errors
from amqp_core.errors import AmqpError
from amqp_core.printable import printable_lines
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import AmqpSparkError, OptionError, PublishFailed, SchemaError, UnsupportedModeError

if TYPE_CHECKING:
    from collections.abc import Iterator

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_OPTIONS = 2
EXIT_BROKER = 3

_ERROR_LINE = re.compile(r"\b(amqp_(?:core|spark)(?:\.\w+)+)\.([A-Z]\w+): (.*)")
# What the JVM throws when a class is not as another one was compiled against: some library is for another Spark.
_LINKAGE_ERROR = re.compile(
    r"\bjava\.lang\.((?:AbstractMethod|IncompatibleClassChange|NoClassDefFound|NoSuchField|NoSuchMethod)Error: .*)"
)
# The last line of a traceback of Python.
_PYTHON_ERROR = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception)): (.*)$", re.MULTILINE)
_PACKAGE_MISSING = re.compile(r"No module named '([\w.]+)'")
_TRACEBACK = "Traceback (most recent call last):"
# Text that the JVM may append to an error.
_NOT_OURS = (" ", "\t", "===", "Traceback", "The above exception", "During handling", "JVM stacktrace", "Caused by")


class CommandLineError(Exception):
    """The command line is wrong.

    Args:
        problem: within a sentence; without ``remedy`` the whole text.
        remedy: a sentence without its full stop.
    """

    def __init__(self, problem: str, remedy: str | None = None) -> None:
        if remedy is not None:
            problem = SparkCondition.COMMAND_LINE_INVALID(problem=problem, remedy=remedy)
        super().__init__(problem)


def explain(error: BaseException) -> tuple[str, int]:
    """Message for the user and exit code of an error, which may come from another process.

    An error of ours that went through the JVM is text: the last line of a Python traceback somewhere in it.
    """
    if isinstance(error, AmqpError):
        return "\n".join((str(error), *getattr(error, "__notes__", ()))), _code(type(error))
    text = _text(error)
    found = list(_ERROR_LINE.finditer(text))
    if found:
        match = found[-1]
        return _message(text, match), _code(_class(match[1], match[2]))
    if (unfit := _LINKAGE_ERROR.search(text)) is not None:
        from pyspark import __version__ as spark  # noqa: PLC0415 - slow, and there is a JVM only after it

        return SparkCondition.JAVA_LIBRARY_UNFIT(spark=spark, reason=unfit[1].removesuffix(".")), EXIT_FAILED
    if _TRACEBACK in text and (raised := _PYTHON_ERROR.findall(text[text.rindex(_TRACEBACK) :])):
        name, message = raised[0]
        if name == "ModuleNotFoundError" and (package := _PACKAGE_MISSING.search(message)) is not None:
            return SparkCondition.PYTHON_PACKAGE_MISSING(package=package[1]), EXIT_FAILED
        return f"{name}: {message}", EXIT_FAILED
    # The first line of an error that py4j passes on names only a Java object; the next has its class before the text.
    lines = [
        re.sub(r"^: [\w.$]+: ", "", line)
        for line in text.splitlines()
        if line.strip() and not line.startswith("An error occurred while calling ")
    ]
    return (lines[0] if lines else type(error).__name__), EXIT_FAILED


@contextmanager
def spark_refuses() -> Iterator[None]:
    """Turn a refusal by Spark before anything ran (column, format, trigger, option) into a CommandLineError."""
    try:
        yield
    except Exception as error:
        from pyspark.errors import AnalysisException, IllegalArgumentException, ParseException  # noqa: PLC0415 - slow

        known = (AnalysisException, IllegalArgumentException, ParseException)
        if not isinstance(error, known) and "[DATA_SOURCE_NOT_FOUND]" not in str(error):
            raise
        raise CommandLineError(explain(error)[0]) from error


def _lost_java(error: BaseException) -> bool:
    """Whether the connection to Java was lost. py4j connects again, and raises that this is refused: by a broker, it
    seems."""
    network_error: type[BaseException] | None = getattr(sys.modules.get("py4j.protocol"), "Py4JNetworkError", None)
    if network_error is None:
        return False
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, network_error):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _text(error: BaseException) -> str:
    if _lost_java(error):
        return SparkCondition.JAVA_ENDED()
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - py4j asks the JVM for the text of its errors, and that may have ended
        return f"{type(error).__name__}: the JVM, which knows the reason, has ended"


def _message(text: str, match: re.Match[str]) -> str:
    """The error's own lines: the line that names it, the list of problems under it, and its notes."""
    lines = [match[3]]
    for line in text[match.end() :].splitlines()[1:]:
        if not line.startswith("  - ") and (not line.strip() or line.startswith(_NOT_OURS)):
            break
        lines.append(line)
    return "\n".join(lines)


def _class(module: str, name: str) -> object:
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


def _code(cls: object) -> int:
    if not (isinstance(cls, type) and issubclass(cls, AmqpError)) or cls is core_errors.UsageError:
        return EXIT_FAILED
    if issubclass(cls, AmqpSparkError) and not issubclass(cls, PublishFailed):
        return EXIT_OPTIONS if issubclass(cls, (OptionError, SchemaError, UnsupportedModeError)) else EXIT_FAILED
    return EXIT_BROKER


def fail(program: str, error: BaseException) -> int:
    """Print the error on standard error; return the exit code."""
    if isinstance(error, CommandLineError):
        text, code = str(error), EXIT_OPTIONS
    else:
        text, code = explain(error)
    tell(program, f"error: {text}")
    return code


def tell(program: str, text: str) -> None:
    """Print what ended the program on standard error, if anyone can still read it: texts of a broker cannot control
    the terminal."""
    with suppress(OSError):
        sys.stderr.write(f"{program}: {printable_lines(text)}\n")
        sys.stderr.flush()
