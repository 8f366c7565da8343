"""``amqp-spark demo`` as users run it: installed from the wheel, from any directory."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from amqp_spark.demo import command
from amqp_spark.demo.__main__ import main
from amqp_spark.demo.java import JavaMissing, require_java
from tests.support.jobs import ROOT, installed_from_a_wheel

if TYPE_CHECKING:
    from pathlib import Path

DONE = "every message arrived exactly once, and the summaries of them came back"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory; a directory beside it is that of temporary files."""
    for name in ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def temporary(place: Path) -> list[str]:
    return sorted(path.name for path in place.with_name("temporary").iterdir())


@pytest.mark.spark
@pytest.mark.parametrize("quick", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_after_an_installation_it_proves_that_every_message_arrived(
    place: Path, monkeypatch: pytest.MonkeyPatch, *, quick: bool
) -> None:
    if not quick:  # all as users have it
        for name in [name for name in os.environ if name.startswith("SPARK_")]:
            monkeypatch.delenv(name)
    count = [] if not quick else ["--count", "3000"]
    python = installed_from_a_wheel(place.parent)
    program = python.with_name("amqp-spark")
    done = subprocess.run([program, "demo", *count], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr  # nor noise of Spark
    lines = done.stdout.splitlines()
    assert [line[:3] for line in lines if line[1:2] == "/"] == [f"{number}/6" for number in range(1, 7)]
    assert sum(line.startswith("  ok   ") for line in lines) == 10
    number = "3,000" if quick else "50,000"
    assert f"  ok   {number} rows for {number} published and confirmed messages" in lines
    assert DONE in lines[-1]
    assert all(re.match(r"\d/6 |    |  ok   |demo: ", line) for line in lines), done.stdout
    assert list(place.iterdir()) == []
    assert temporary(place) == []


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.parametrize("broker", ["broker-j", "rabbitmq"])
def test_on_a_real_broker(place: Path, broker: str) -> None:
    program = [sys.executable, "-m", "tests.support.demo", "--broker", broker, "--count", "3000"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(program, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert done.stdout.count("  ok   ") == 10
    assert DONE in done.stdout


def fake_java(directory: Path, version: str) -> None:
    directory.mkdir(parents=True)
    java = directory / "java"
    java.write_text(
        f"""#!/bin/sh
test "$1" = -version && {{ echo 'openjdk version "{version}" 2026-01-01' >&2; exit; }}
echo 'Error occurred during initialization of VM' >&2
exit 1
""",
        encoding="utf-8",
    )
    java.chmod(0o755)


def test_without_java_it_says_what_to_install(
    place: Path, empty_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == (
        "demo: error: [AMQP_JAVA_MISSING] Spark needs Java 17 or newer, and neither JAVA_HOME nor the PATH has one. "
        "Install it with 'sudo apt-get install -y openjdk-17-jre-headless' or 'brew install openjdk@17', or set "
        "JAVA_HOME to the directory of one.\n"
    )
    (empty_path / "dnf").touch(0o755)
    assert main([]) == 1
    assert "Install it with 'sudo dnf install -y java-17-openjdk-headless', or" in capsys.readouterr().err
    assert temporary(place) == []


def test_a_java_that_spark_cannot_use_is_named(empty_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(empty_path / "17" / "bin", "17.0.1")
    fake_java(empty_path / "8" / "bin", "1.8.0_392")
    monkeypatch.setenv("JAVA_HOME", str(empty_path / "17"))
    require_java()
    monkeypatch.setenv("JAVA_HOME", str(empty_path / "8"))
    with pytest.raises(JavaMissing, match="/8/bin/java is Java 8"):
        require_java()
    monkeypatch.setenv("JAVA_HOME", str(empty_path))  # Spark does not look further, whatever the PATH has
    monkeypatch.setenv("PATH", str(empty_path / "17" / "bin"))
    with pytest.raises(JavaMissing, match=r"JAVA_HOME=.* has no bin/java"):
        require_java()


def test_what_spark_printed_is_shown_when_it_fails(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path / "jdk" / "bin", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    done = subprocess.run(
        [sys.executable, "-m", "amqp_spark.demo", "--count", "10"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    *printed, error, where = done.stderr.splitlines()
    assert "Error occurred during initialization of VM" in printed
    assert error.startswith("demo: error: [JAVA_GATEWAY_EXITED]")
    (kept,) = temporary(place)
    assert where == f"demo: files and the log of Spark (spark.log) are in {place.with_name('temporary') / kept}"
    assert (place.with_name("temporary") / kept / "spark.log").read_text(encoding="utf-8").splitlines() == printed


def test_a_check_that_fails_ends_with_1_and_keeps_the_files(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_java(tmp_path / "jdk" / "bin", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    monkeypatch.setattr(command, "demonstrate", lambda *_: False)
    assert main([]) == 1
    (kept,) = temporary(place)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("demo: FAILED; files and the log of Spark (spark.log) are in ")
    assert last.endswith(kept)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_it_and_leaves_nothing(place: Path, number: signal.Signals, code: int) -> None:
    started = subprocess.Popen(
        [sys.executable, "-m", "amqp_spark.demo", "--count", "100000000"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with started:
        assert started.stdout is not None
        for line in started.stdout:
            if line.startswith("2/6"):
                break
        started.send_signal(number)
        assert started.wait(60) == code
    assert temporary(place) == []


def test_a_directory_to_keep_must_have_no_files(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "notes.txt").touch()
    assert main(["--keep", str(place)]) == 2
    assert "has files. Give a new or an empty directory." in capsys.readouterr().err
    assert main(["--keep", str(place / "notes.txt")]) == 2
    assert "is no directory" in capsys.readouterr().err
    assert [path.name for path in place.iterdir()] == ["notes.txt"]
