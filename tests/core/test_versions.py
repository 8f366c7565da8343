"""``make test-matrix``: how interpreters are found, results are kept and counted, and the table is written."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.versions import cells, environment, interpreters, results, running, selection, table
from tests.versions.__main__ import README, exit_code, main
from tests.versions.cells import Cell
from tests.versions.results import Result, State

ROOT = Path(__file__).resolve().parents[2]
OLD, NEW = Cell("4.2", "3.12"), Cell("4.3", "3.13")


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def result(cell: Cell, state: State = State.PASSED, **fields: Any) -> Result:
    given: dict[str, Any] = {"built": "b", "passed": 344} | fields
    return Result(spark=cell.spark, python=cell.python, state=state, **given)


def test_a_python_is_found_behind_a_shim_that_refuses(
    empty_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(empty_path / "python3.12", "echo 'pyenv: python3.12: command not found' >&2; exit 127")
    assert interpreters.find("3.12") is None
    wanted = program(tmp_path / "usr" / "python3.12", "echo 3.12")
    monkeypatch.setenv("PATH", f"{empty_path}:{tmp_path / 'absent'}:{wanted.parent}")
    assert interpreters.find("3.12") == wanted
    assert interpreters.find("3.13") is None
    assert interpreters.how_to_get("3.13") == (
        "There is no python3.13 on the PATH, and pyenv has no 3.13. Install it, for instance with 'pyenv install 3.13'."
    )


def test_the_newest_python_of_pyenv_is_taken(empty_path: Path, tmp_path: Path) -> None:
    program(
        empty_path / "pyenv",
        f"""case "$*" in
"versions --bare") printf '3.12.9\\n3.12.10\\n3.1.2\\n3.12-dev\\n' ;;
"prefix "*) echo "{tmp_path}/$2" ;;
esac""",
    )
    for name in ("3.12.9", "3.12.10"):
        program(tmp_path / name / "bin" / "python3.12", "echo 3.12")
    assert interpreters.find("3.12") == tmp_path / "3.12.10" / "bin" / "python3.12"
    assert interpreters.find("3.11") is None


def test_the_oldest_cell_has_the_oldest_libraries() -> None:
    assert [str(cell) for cell in cells.chosen() if cell.is_oldest] == ["Spark 4.2 on Python 3.11"]
    libraries = environment.least_versions()
    assert "numpy==1.26.*" in libraries
    assert not any(each.startswith("pyspark") for each in libraries)


def test_cells_are_chosen_by_version() -> None:
    assert len(cells.chosen()) == len(cells.SPARKS) * len(cells.PYTHONS)
    assert cells.chosen(["4.2"], ["3.12"]) == [OLD]
    assert cells.chosen([], ["3.12"]) == [Cell("4.2", "3.12"), Cell("4.3", "3.12")]


@pytest.mark.parametrize("arguments", [["--spark", "4.1"], ["--python", "3.10"], ["--workers", "0"]])
def test_what_the_command_line_does_not_allow_is_named(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert arguments[0] in shown
    assert arguments[1] in shown


def test_the_pythons_are_those_of_the_metadata_and_the_selected_tests_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [each for each in project["classifiers"] if each.startswith("Programming Language :: Python :: 3.")]
    assert [each.rpartition(" ")[2] for each in named] == list(cells.PYTHONS)
    chosen = [*selection.BRIEF, *selection.THOROUGH]
    assert len(set(chosen)) == len(chosen)
    assert [path for path in chosen if not (ROOT / path).is_file()] == []


@pytest.mark.parametrize(
    ("states", "is_selected", "code"),
    [
        ([State.PASSED, State.NOT_RUN], False, 0),
        ([State.PASSED, State.NOT_RUN], True, 1),
        ([State.PASSED, State.FAILED], False, 1),
        ([State.NOT_RUN], False, 1),
        ([State.PASSED], True, 0),
    ],
)
def test_the_exit_code_is_0_where_all_that_was_asked_for_passed(
    states: list[State], is_selected: bool, code: int
) -> None:
    assert exit_code([result(NEW, state) for state in states], is_selected=is_selected) == code


def test_the_table_of_support_has_what_passed_and_that_of_the_terminal_all() -> None:
    found = {
        OLD: result(OLD, spark_version="4.2.1", python_version="3.12.1"),
        NEW: result(NEW, State.FAILED, spark_version="4.3.0", python_version="3.13.0", failed=2, passed=342),
    }
    assert table.of_support(found) == (
        "| | Python 3.11 | Python 3.12.1 | Python 3.13 | Python 3.14 |\n"
        "| --- | --- | --- | --- | --- |\n"
        "| Spark 4.2.1 | - | 344 tests | - | - |\n"
        "| Spark 4.3 | - | - | - | - |\n"
    )
    assert table.of_all(found) == (
        "| | Python 3.11 | Python 3.12.1 | Python 3.13.0 | Python 3.14 |\n"
        "| --- | --- | --- | --- | --- |\n"
        "| Spark 4.2.1 | not run | 344 tests passed | not run | not run |\n"
        "| Spark 4.3.0 | not run | not run | 2 of 344 tests failed | not run |\n"
    )


def test_the_table_replaces_what_is_between_the_markers(tmp_path: Path) -> None:
    document = tmp_path / "README.md"
    document.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n", encoding="utf-8")
    found = {OLD: result(OLD)}
    for _ in range(2):  # the second time changes nothing
        table.write(document, found)
        text = f"before\n{table.BEGIN}\n{table.of_support(found)}{table.END}\nafter\n"
        assert document.read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    "text", ["", table.BEGIN, table.END + table.BEGIN, table.BEGIN * 2 + table.END, table.BEGIN + table.END * 2]
)
def test_a_document_without_a_place_for_the_table_is_not_changed(tmp_path: Path, text: str) -> None:
    document = tmp_path / "README.md"
    document.write_text(text, encoding="utf-8")
    with pytest.raises(table.MarkersMissing, match=r"README\.md does not have these two lines"):
        table.write(document, {})
    assert document.read_text(encoding="utf-8") == text


def test_the_readme_has_a_place_for_the_table() -> None:
    before, after = table.around(README)
    assert before
    assert after


def test_results_of_other_code_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "build" / "matrix.json"
    assert results.load(path, "b") == {}
    found = {OLD: result(OLD, failures=("t",)), NEW: result(NEW, State.NOT_RUN, built="other")}
    results.save(path, found)
    assert results.load(path, "b") == {OLD: found[OLD]}
    assert results.load(path, "other") == {NEW: found[NEW]}


def test_a_report_is_counted() -> None:
    report = """<testsuites><testsuite tests="5" errors="1" failures="1" skipped="1" time="2.5">
    <testcase classname="a" name="good"/><testcase classname="a" name="skipped"><skipped/></testcase>
    <testcase classname="a" name="bad"><failure/></testcase>
    <testcase classname="a" name="bad"><error/></testcase><testcase classname="b" name="good"><properties/></testcase>
    </testsuite></testsuites>"""
    counts = running.counted(report)
    assert counts == running.Counts(2, 1, 1, 2.5, ("a::bad",))
    together = counts.and_then(running.Counts(passed=1, seconds=1.0))
    assert together == running.Counts(3, 1, 1, 3.5, ("a::bad",))


def test_a_package_that_is_imported_from_elsewhere_is_an_error(tmp_path: Path) -> None:
    inside = str(tmp_path / "venv" / "lib" / "amqp_spark" / "__init__.py")
    environment.check_files([inside], tmp_path / "venv")
    with pytest.raises(environment.EnvironmentFailed, match=r"amqp_core/__init__\.py is imported instead of the wheel"):
        environment.check_files([inside, str(ROOT / "amqp_core" / "__init__.py")], tmp_path / "venv")
