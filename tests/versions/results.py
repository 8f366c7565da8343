"""What came out of the cells, kept in a JSON file over several runs."""

from __future__ import annotations

import dataclasses
import json
from enum import StrEnum
from typing import TYPE_CHECKING

from tests.versions.cells import Cell

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class State(StrEnum):
    """How a cell ended."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not run"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one cell.

    Attributes:
        built: digest of the code in the wheel.
        spark_version: full version that was installed; empty: unknown.
        python_version: full version of the interpreter; empty: unknown.
        passed: number of tests.
        failed: number of tests, with those that had errors.
        skipped: number of tests.
        seconds: time that the tests took.
        reason: why it failed or was not run.
        failures: names of tests that failed.
    """

    spark: str
    python: str
    built: str
    state: State
    spark_version: str = ""
    python_version: str = ""
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    reason: str = ""
    failures: Sequence[str] = ()

    @property
    def cell(self) -> Cell:
        """Where it belongs."""
        return Cell(self.spark, self.python)

    @property
    def place(self) -> str:
        """The cell with full versions, as far as they are known."""
        return str(Cell(self.spark_version or self.spark, self.python_version or self.python))

    def __str__(self) -> str:
        if self.state is State.PASSED:
            skipped = f", {self.skipped} skipped" if self.skipped else ""
            return f"{self.passed} tests passed{skipped}"
        if self.failed:
            return f"{self.failed} of {self.passed + self.failed} tests failed"
        return f"{self.state}: {self.reason}" if self.reason else str(self.state)


def load(path: Path, built: str) -> dict[Cell, Result]:
    """The results in a file that are of the same code."""
    if not path.exists():
        return {}
    listed = json.loads(path.read_text(encoding="utf-8"))
    read = [Result(**each | {"state": State(each["state"]), "failures": tuple(each["failures"])}) for each in listed]
    return {result.cell: result for result in read if result.built == built}


def save(path: Path, results: dict[Cell, Result]) -> None:
    """Write all results, in the order of the cells."""
    path.parent.mkdir(parents=True, exist_ok=True)
    listed = [dataclasses.asdict(results[cell]) for cell in sorted(results)]
    path.write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
