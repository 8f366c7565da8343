"""``amqp-spark``: which command it runs, what it shows, and what it refuses; without Spark."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import re
import runpy
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING

import pytest

import amqp_spark
from amqp_spark.program import COMMANDS, main
from tests.support.jobs import ROOT, load

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType

NAMES = [command.name for command in COMMANDS]
JOBS = ("ingest", "publish", "bridge", "drain")
HEAVY = ("pyspark", "pyarrow", "pandas", "numpy")

# Shows, after the help of the program and of each command, which of the given modules are imported.
HELPS = """
import io, json, sys
from contextlib import redirect_stdout, suppress

from amqp_spark.program import main

heavy, commands = json.load(sys.stdin)
found = {}
for arguments in (["--help"], ["--version"], *([name, "--help"] for name in commands)):
    with redirect_stdout(io.StringIO()), suppress(SystemExit):
        main(arguments)
    found[" ".join(arguments)] = [name for name in heavy if name in sys.modules]
print(json.dumps(found))
"""


def as_a_file(path: str) -> object:
    return runpy.run_path(path, run_name="__main__")


def as_a_module(name: str) -> object:
    return runpy.run_module(name, run_name="__main__", alter_sys=True)


def test_the_script_that_is_installed_is_this_program() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert pkgutil.resolve_name(project["scripts"]["amqp-spark"]) is main


def test_help_has_one_line_for_each_command_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert re.findall(r"^  ([a-z]+)  +\w", shown, re.MULTILINE) == NAMES
    assert set(NAMES) >= {*JOBS, "transactions", "broker", "demo"}
    assert all(f"{code} " in shown.partition("exit codes")[2] for code in ("0", "1", "2", "3", "130, 143"))
    assert max(map(len, shown.splitlines())) <= 120


@pytest.mark.parametrize("name", NAMES)
def test_each_command_has_a_help_that_names_it_as_the_user_does(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: amqp-spark {name} ")


def test_help_waits_neither_for_spark_nor_for_arrow() -> None:
    names = [name for name in NAMES if name != "demo"]
    given = json.dumps([HEAVY, names])
    done = subprocess.run([sys.executable, "-c", HELPS], input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == {shown: [] for shown in ("--help", "--version", *(f"{name} --help" for name in names))}


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"amqp-spark {amqp_spark.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        ([], ["no command is given"]),
        (["ingst", "--queue", "q"], ["no command 'ingst'", "Use 'ingest' instead"]),
        (["transactions.py"], ["Use 'transactions' instead"]),
        (["Drain"], ["Use 'drain' instead"]),
        (["xyzzy"], ["no command 'xyzzy'. Use one of"]),
        (["--queue", "q"], ["'--queue' is no option of amqp-spark itself", "--help or --version"]),
        (["--password=s3cret"], ["'--password' is no option"]),
        (["amqp://u:s3cret@h/v"], ["the first argument is no command"]),
        (["x" * 10_000], ["the first argument is no command"]),
    ],
)
def test_an_unknown_command_ends_with_2_and_names_those_that_there_are(
    arguments: list[str], texts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("amqp-spark: error: [AMQP_COMMAND_LINE_INVALID] ")
    assert ", ".join(NAMES) in shown.err
    assert all(text in shown.err for text in texts), shown.err
    assert "s3cret" not in shown.err
    assert len(shown.err) < 400


@pytest.mark.parametrize("name", NAMES)
def test_a_command_gets_its_arguments_and_gives_the_exit_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (command,) = [command for command in COMMANDS if command.name == name]
    got: list[list[str]] = []

    def instead(argv: list[str]) -> int:
        got.append(argv)
        return 3

    monkeypatch.setattr(f"{command.module}.main", instead)
    assert main([name, "--count", "--help"]) == 3
    monkeypatch.setattr("sys.argv", ["amqp-spark", name])
    assert main() == 3
    assert got == [["--count", "--help"], []]


def test_errors_of_a_command_are_its_own(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("AMQP_URL", raising=False)
    assert main(["ingest", "--output", "out", "--checkpoint", "ck"]) == 2
    assert capsys.readouterr().err.startswith("ingest: error: ")


@pytest.mark.parametrize(
    ("arguments", "code"), [([], 2), (["publish", "--url", "amqp://h"], 2), (["broker", "--x"], 2)]
)
def test_a_closed_standard_error_is_no_error(arguments: list[str], code: int) -> None:
    """``2>&-``, as some schedulers start their jobs."""
    shell = ["sh", "-c", 'exec "$0" -m amqp_spark "$@" 2>&-', sys.executable, *arguments]
    done = subprocess.run(shell, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (code, "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["transactions", "amqp://h", "--rollback", "1:a:b"], "there is no terminal for a question. Add --yes"),
        (
            ["broker", "user", "add", "carol", "--users", "{directory}/users"],
            "No password is given. Give --password-file",
        ),
    ],
)
def test_a_closed_standard_input_has_no_answer(tmp_path: Path, arguments: list[str], said: str) -> None:
    shell = ["sh", "-c", 'exec "$0" -m amqp_spark "$@" <&-', sys.executable]
    shell += [each.format(directory=tmp_path) for each in arguments]
    done = subprocess.run(shell, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_closed_standard_output_changes_no_exit_code() -> None:
    shell = ["sh", "-c", 'exec "$0" -m amqp_spark doctor amqp://127.0.0.1:1 >&-', sys.executable]
    done = subprocess.run(shell, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (3, "")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["doctor", "amqp://127.0.0.1:1"]], ids=" ".join)
def test_a_full_disk_under_standard_output_is_one_sentence(arguments: list[str]) -> None:
    shell = ["sh", "-c", 'exec "$0" -m amqp_spark "$@" >/dev/full', sys.executable, *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(shell, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert done.returncode == 1
    assert "error: Cannot write on standard output: No space left on device. Free its disk, or send" in done.stderr
    assert done.stderr.count("\n") == 1


def test_arguments_that_a_command_does_not_know_are_refused_in_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["broker", "user", "show"])
    assert ended.value.code == 2
    assert "\namqp-spark broker user: error: " in capsys.readouterr().err


def test_a_command_that_is_interrupted_at_its_start_ends_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: str) -> ModuleType:
        raise KeyboardInterrupt

    monkeypatch.setattr("importlib.import_module", interrupted)
    assert main(["ingest"]) == 130
    assert capsys.readouterr().err == "\namqp-spark: stopped by SIGINT\n"


@pytest.mark.parametrize("name", JOBS)
def test_a_file_for_spark_submit_is_the_same_code(name: str) -> None:
    assert load(name).main is importlib.import_module(f"amqp_spark.commands.{name}").main
    assert [command.module for command in COMMANDS if command.name == name] == [f"amqp_spark.commands.{name}"]


@pytest.mark.parametrize(
    ("start", "what", "name"),
    [
        *((as_a_file, str(ROOT / "jobs" / f"{name}.py"), f"{name}.py") for name in JOBS),
        (as_a_module, "amqp_spark.transactions", "python -m amqp_spark.transactions"),
        (as_a_module, "amqp_spark.demo", "python -m amqp_spark.demo"),
        (as_a_module, "amqp_spark", "amqp-spark"),
    ],
    ids=[*JOBS, "transactions", "demo", "amqp_spark"],
)
def test_other_ways_to_start_a_command_keep_their_name(
    start: Callable[[str], object],
    what: str,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", [what, "--no-such"])
    monkeypatch.delitem(sys.modules, f"{what}.__main__", raising=False)  # runpy warns of a second copy
    with pytest.raises(SystemExit) as ended:
        start(what)
    assert ended.value.code == 2
    assert f"\n{name}: error: " in f"\n{capsys.readouterr().err}"


def test_the_broker_and_a_command_that_looks_at_it() -> None:
    """Two processes, as users have them: the embedded broker, and what it holds of exactly-once."""
    amqp_spark = [sys.executable, "-m", "amqp_spark"]
    with subprocess.Popen(
        [*amqp_spark, "broker", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as broker:
        try:
            assert broker.stdout is not None
            url, _, login = broker.stdout.readline().partition(" ")
            assert login.strip() == "user guest, password guest"
            done = subprocess.run(
                [*amqp_spark, "transactions", url, "--username", "guest", "--json"],
                env=os.environ | {"AMQP_PASSWORD": "guest"}, capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
        finally:
            broker.terminate()
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["prepared"] == []
    assert broker.returncode == 143
