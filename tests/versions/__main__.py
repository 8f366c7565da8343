"""``python -m tests.versions``: a part of the tests on every Spark and Python that the package claims.

The wheel is built once. Each cell has a fresh virtual environment with it, and tests what is installed there. The
results of all runs with the same code are in build/test-matrix.json.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from typing import TYPE_CHECKING

from tests.versions import cells, environment, interpreters, results, running, table
from tests.versions.environment import ROOT, EnvironmentFailed
from tests.versions.results import Result, State
from tests.versions.table import MarkersMissing

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

BUILD = ROOT / "build"
PLACE = BUILD / "test-matrix"
"""Of the wheel, the environments and the output of pytest."""
RECORD = BUILD / "test-matrix.json"
README = ROOT / "README.md"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    arguments = argparse.ArgumentParser(
        prog="python -m tests.versions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument(
        "--spark", action="append", default=[], choices=cells.SPARKS, help="only this Spark; may be repeated"
    )
    arguments.add_argument(
        "--python", action="append", default=[], choices=cells.PYTHONS, help="only this Python; may be repeated"
    )
    arguments.add_argument("--write", action="store_true", help="write what has passed into the table of README.md")
    arguments.add_argument("--workers", type=int, default=2, help="test processes (default: 2)")
    arguments.add_argument("--keep", action="store_true", help="keep the environments, 1 GB each")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run the chosen cells; return the exit code."""
    command = parser()
    options = command.parse_args(argv)
    if options.workers < 1:
        command.error(f"--workers {options.workers}: allowed are 1 and more")
    try:
        if options.write:
            table.around(README)  # before anything takes time
        say("building the wheel")
        wheel = environment.build_wheel(PLACE / "dist")
        tree = environment.copy_tests(PLACE / "tree")
    except (EnvironmentFailed, MarkersMissing) as error:
        say(f"error: {error}")
        return 1
    built = environment.digest(wheel)
    found = results.load(RECORD, built)
    chosen = cells.chosen(options.spark, options.python)
    now: list[Result] = []
    for number, cell in enumerate(chosen, 1):
        say(f"{number} of {len(chosen)}: {cell}: making its environment")
        result = run(cell, wheel, tree, built, workers=options.workers, keep=options.keep)
        say(f"{number} of {len(chosen)}: {result.place}: {result} ({result.seconds / 60:.0f} min)")
        for name in result.failures:
            say(f"  FAILED {name}")
        now.append(result)
        found[cell] = result
        results.save(RECORD, found)  # what there is, should the next one be interrupted
    print(
        f"\n{table.of_all(found)}\nwritten to {RECORD.relative_to(ROOT)}; output of pytest: {PLACE.relative_to(ROOT)}"
    )
    if options.write:
        table.write(README, found)
        print(f"written to {README.name}")
    return exit_code(now, is_selected=bool(options.spark or options.python))


def exit_code(now: Sequence[Result], *, is_selected: bool) -> int:
    """0 if cells passed and none failed; a cell without its Python is a failure only where the user selected it."""
    states = {result.state for result in now}
    if State.FAILED in states or (is_selected and State.NOT_RUN in states):
        return 1
    return 0 if State.PASSED in states else 1


def run(cell: cells.Cell, wheel: Path, tree: Path, built: str, *, workers: int, keep: bool) -> Result:
    """Run one cell; whatever happens is in its result."""
    name = f"spark{cell.spark}-python{cell.python}"
    versions = ("", "")

    def ended(state: State, reason: str = "", counts: running.Counts | None = None) -> Result:
        given = counts or running.Counts(seconds=time.monotonic() - begun)
        return Result(
            spark=cell.spark,
            python=cell.python,
            built=built,
            state=state,
            spark_version=versions[0],
            python_version=versions[1],
            reason=reason,
            **given._asdict(),
        )

    begun = time.monotonic()
    interpreter = interpreters.find(cell.python)
    if interpreter is None:
        return ended(State.NOT_RUN, interpreters.how_to_get(cell.python))
    try:
        others = environment.least_versions() if cell.is_oldest else []
        made = environment.make(cell.requirement, interpreter, wheel, tree, PLACE / name, others)
        versions = made.spark, made.python
        say(f"{cells.Cell(*versions)}: installed in {time.monotonic() - begun:.0f} s; running the tests")
        counts = running.run(made, workers, PLACE / f"{name}.log")
    except (EnvironmentFailed, running.RunFailed) as error:
        return ended(State.FAILED, str(error))
    finally:
        if not keep:
            shutil.rmtree(PLACE / name, ignore_errors=True)
    return ended(State.FAILED if counts.failed else State.PASSED, counts=counts)


def say(text: str) -> None:
    """Print a line of progress at once."""
    print(f"test-matrix: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
