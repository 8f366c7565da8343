"""The table of the results: for the terminal, and between two marker comments of the README."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.versions.cells import PYTHONS, SPARKS, Cell
from tests.versions.results import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from tests.versions.results import Result

BEGIN: Final = "<!-- support table: written by make test-matrix ARGS=--write -->"
END: Final = "<!-- end of the support table -->"


class MarkersMissing(ValueError):
    """A document has no place for the table."""


def of_all(results: Mapping[Cell, Result]) -> str:
    """A table that says of each cell how it ended."""
    return _table(results, str, "not run")


def of_support(results: Mapping[Cell, Result]) -> str:
    """A table that says which cells have passed, and nothing of others."""
    passed = {cell: result for cell, result in results.items() if result.state is State.PASSED}
    return _table(passed, lambda result: f"{result.passed} tests", "-")


def write(path: Path, results: Mapping[Cell, Result]) -> None:
    """Put the table of support between the markers of a document.

    Raises:
        MarkersMissing: the document does not have both of them once, in order.
    """
    before, after = around(path)
    path.write_text(f"{before}{BEGIN}\n{of_support(results)}{END}{after}", encoding="utf-8")


def around(path: Path) -> tuple[str, str]:
    """The text before and after the table of a document.

    Raises:
        MarkersMissing: the document does not have both markers once, in order.
    """
    text = path.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end) or BEGIN in rest or END in before or END in after:
        raise MarkersMissing(
            f"{path.name} does not have these two lines once and in this order. Add them: {BEGIN} and {END}"
        )
    return before, after


def _table(results: Mapping[Cell, Result], text: Callable[[Result], str], absent: str) -> str:
    def full(version: str, found: Iterable[str]) -> str:
        return "/".join(sorted({each for each in found if each})) or version

    columns = [
        "Python " + full(python, (each.python_version for each in results.values() if each.python == python))
        for python in PYTHONS
    ]
    lines = [["", *columns], ["---"] * (len(PYTHONS) + 1)]
    for spark in SPARKS:
        name = "Spark " + full(spark, (each.spark_version for each in results.values() if each.spark == spark))
        cells = (results.get(Cell(spark, python)) for python in PYTHONS)
        lines.append([name, *(absent if result is None else text(result) for result in cells)])
    return "".join(map(_line, lines))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n".replace("|  |", "| |")
