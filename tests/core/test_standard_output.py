"""What programs print: for a reader that has ended, on a closed standard output, in an encoding of few characters."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys

import pytest

from amqp_core.standard_output import say

HELP = [
    ["-m", "amqp_spark", "--help"],
    ["-m", "amqp_spark", "--version"],
    ["-m", "amqp_spark", "drain", "--help"],
    ["-m", "amqp_core.broker", "--help"],
]


def ended_with(arguments: list[str], redirected: str) -> tuple[int, str]:
    """Exit code and standard error of a program of Python, started by a shell that redirects its standard output."""
    command = ["sh", "-c", f'exec "$@" {redirected}', "sh", sys.executable, *arguments]
    reads, writes = os.pipe()
    os.close(reads)
    try:
        ended = subprocess.run(command, stdout=writes, stderr=subprocess.PIPE, text=True, check=False, timeout=120)
    finally:
        os.close(writes)
    return ended.returncode, ended.stderr


@pytest.mark.parametrize("redirected", ["", ">&-"], ids=["the reader has ended", "closed"])
@pytest.mark.parametrize("arguments", HELP, ids=" ".join)
def test_help_that_nobody_reads_is_no_error(arguments: list[str], redirected: str) -> None:
    assert ended_with(arguments, redirected) == (0, "")


@pytest.mark.parametrize("redirected", ["", ">&-"], ids=["the reader has ended", "closed"])
def test_a_program_keeps_its_exit_code_when_nobody_reads(redirected: str) -> None:
    program = "import sys; from amqp_core.standard_output import say; say('a'); say('b'); sys.exit(7)"
    assert ended_with(["-c", program], redirected) == (7, "")


def test_what_the_encoding_lacks_is_escaped() -> None:
    program = "from amqp_core.standard_output import say; say('b\\u00fccher \\u2713 \\udcff')"
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    shown = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
    assert shown.stdout == rb"b\xfccher \u2713 \udcff" + os.linesep.encode()


def test_a_file_in_memory_takes_every_character(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    say("b\u00fccher")
    assert stream.getvalue() == "b\u00fccher\n"


@pytest.mark.parametrize("arguments", HELP, ids=" ".join)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_under_the_help_is_one_sentence(
    arguments: list[str], unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    code, told = ended_with(arguments, ">/dev/full")
    assert code == 1
    sentence = r"[\w. -]+: error: Cannot write on standard output: No space left on device\. Free its disk, or .*\.\n"
    assert re.fullmatch(sentence, told)


def test_a_full_disk_is_an_error_of_the_system_and_nothing_is_written_later() -> None:
    program = (
        "import sys\n"
        "from amqp_core.standard_output import say\n"
        "try:\n    say('x')\n"
        "except OSError as error:\n    sys.exit(error.errno)"
    )
    assert ended_with(["-c", program], ">/dev/full") == (28, "")
