"""Standard error while a panel has the terminal: lines in order, nothing lost, the descriptor as before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from amqp_spark.cli.standard_error import StandardError
from amqp_spark.cli.warning_lines import printable, warning_of
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    """A descriptor in place of 2, to a file."""
    opened = os.open(tmp_path / "terminal", os.O_CREAT | os.O_RDWR | os.O_APPEND)
    yield opened
    os.close(opened)


def collecting(descriptor: int, lines: list[str]) -> StandardError:
    taken = StandardError(descriptor)
    taken.on_line = lines.append
    return taken


def file_of(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def test_lines_come_whole_and_in_order_and_the_descriptor_comes_back(descriptor: int, tmp_path: Path) -> None:
    before, lines = file_of(descriptor), list[str]()
    with collecting(descriptor, lines) as taken:
        for piece in (b"fi", b"rst\nsecond\n\nth", "ird: ü\r\n".encode(), b"\xff\n", b"no end"):
            os.write(descriptor, piece)
        taken.terminal.write("panel\n")
        taken.terminal.flush()
    assert lines == ["first", "second", "", "third: ü", "�", "no end"]
    assert file_of(descriptor) == before
    os.write(descriptor, b"after\n")
    assert (tmp_path / "terminal").read_text() == "panel\nafter\n"


def test_more_lines_than_a_pipe_holds(descriptor: int) -> None:
    expected = [f"line {number} " + "x" * 200 for number in range(5000)]
    lines = list[str]()
    with collecting(descriptor, lines):
        data = "".join(f"{line}\n" for line in expected).encode()
        while data:
            data = data[os.write(descriptor, data) :]
    assert lines == expected


def test_after_an_error_the_descriptor_is_as_before_and_no_line_is_lost(descriptor: int) -> None:
    before, lines = file_of(descriptor), list[str]()

    def fail() -> None:
        with collecting(descriptor, lines):
            os.write(descriptor, b"a line\n")
            raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        fail()
    assert lines == ["a line"]
    assert file_of(descriptor) == before


def test_a_line_that_cannot_be_shown_goes_to_the_terminal_as_it_is(descriptor: int, tmp_path: Path) -> None:
    lines = list[str]()

    def show(line: str) -> None:
        if line == "bad":
            raise ValueError("the panel is broken")
        lines.append(line)

    taken = StandardError(descriptor)
    os.write(descriptor, b"before\n")
    taken.on_line = show
    with taken:
        os.write(descriptor, b"good\nbad\ngood\n")
    assert lines == ["good", "good"]
    assert (tmp_path / "terminal").read_text() == "before\nbad\n"


def test_a_process_that_lives_on_keeps_its_way_to_the_terminal(descriptor: int, tmp_path: Path) -> None:
    lines = list[str]()
    with collecting(descriptor, lines):
        child = subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stderr.write('one\\n'); input(); sys.stderr.write('two\\nthr')"],
            stdin=subprocess.PIPE, stderr=descriptor,
        )  # fmt: skip
        wait_until(lambda: lines == ["one"], "the first line", 60)
    assert child.stdin is not None
    child.communicate(b"\n")
    wait_until(lambda: (tmp_path / "terminal").read_text() == "two\nthr\n", "the lines after the end", 60)
    assert lines == ["one"]


_PROGRAM = """
import os, signal, sys
from amqp_spark.cli.running import Signals
from amqp_spark.cli.standard_error import StandardError
taken = StandardError()
taken.on_line = lambda line: os.write(taken.terminal.fileno(), f"panel: {line}\\n".encode())
with Signals() as signals:
    with taken:
        print("first", file=sys.stderr)
        signal.raise_signal(signal.SIGTERM)
        os.system("echo from another process >&2")
    print("after", signals.exit_code, file=sys.stderr)
    END
"""


@pytest.mark.parametrize(
    ("end", "code", "last"),
    [("sys.exit(signals.exit_code)", 143, ""), ("raise RuntimeError('broken')", 1, "RuntimeError: broken\n")],
)
def test_in_a_process_with_a_signal_or_an_error(end: str, code: int, last: str) -> None:
    program = [sys.executable, "-c", _PROGRAM.replace("END", end)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code
    assert done.stderr.startswith("panel: first\npanel: from another process\nafter 143\n")
    assert done.stderr.endswith(last)


def test_a_process_that_is_killed_has_shown_what_was_written() -> None:
    program = _PROGRAM.partition("with Signals")[0] + (
        "taken.__enter__()\nprint('first', file=sys.stderr)\ninput()\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stderr is not None
        assert child.stderr.readline() == "panel: first\n"
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("line", "warning"),
    [
        ("the session of queue 'a' was lost", "the session of queue 'a' was lost"),  # of the reader
        ("26/11/25 21:00:00 ERROR TaskSetManager: Task 0 failed", "Task 0 failed"),
        ("26/11/25 21:00:00 WARN o.a.s.Utils: no name", "no name"),
        ("26/11/25 21:00:00 INFO SparkContext: started", None),
        ("2026-11-25 21:00:00,123 INFO amqp_spark.sink: batch 1: 10 messages, 1.0 kB, 0.1 s, 0 retries", None),
        (
            "2026-11-25 21:00:00,123 INFO amqp_spark.sink: batch 1: 10 messages, 1 kB, 1 s, 2 retries, 3 sent again",
            "batch 1: 10 messages, 1 kB, 1 s, 2 retries, 3 sent again",
        ),
        ("2026-11-25 21:00:00,123 WARNING amqp_spark.sink: batch 1: failed; why", "batch 1: failed; why"),
        ("Traceback (most recent call last):", None),
        ('  File "x.py", line 1', None),
        ("Setting default log level to \"ERROR\".", None),
        ("WARNING: Using incubator modules: jdk.incubator.vector", None),
        ("", None),
    ],
)  # fmt: skip
def test_what_is_a_warning(line: str, warning: str | None) -> None:
    assert warning_of(line) == warning


def test_the_sinks_own_lines_have_the_form_that_is_known(capfd: pytest.CaptureFixture[str]) -> None:
    """By its own handler, in a process that Spark has started."""
    program = (
        "import sys, types; sys.modules['__main__'].__spec__ = types.SimpleNamespace(name='pyspark.daemon')\n"
        "from amqp_spark.sink.statistics import Statistics, log_batch, log_failure\n"
        "log_batch(Statistics(messages=5), 7)\n"
        "log_batch(Statistics(messages=5, discarded=1), 8)\n"
        "log_failure(9, 'the reason is %s', 'x')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    found = [warning_of(line) for line in capfd.readouterr().err.splitlines()]
    assert found == [
        None,
        "batch 8: 5 messages, 0.0 kB, 0.0 s, 0 retries, 1 discarded as unroutable",
        "batch 9: failed; the reason is x",
    ]


def test_printable() -> None:
    assert printable("\x1b[31mred\x1b[0m\ttab\x07\x9b2J") == "red    tab2J"
