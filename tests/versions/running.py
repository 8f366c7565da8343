"""Runs the tests of the matrix in one environment, and counts."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, NamedTuple
from xml.etree import ElementTree as ET

from tests.versions.selection import BRIEF, THOROUGH

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import BinaryIO

    from tests.versions.environment import Environment


class Counts(NamedTuple):
    """Numbers of tests, seconds, and the names of those that failed."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    failures: tuple[str, ...] = ()

    def and_then(self, later: Counts) -> Counts:
        """Of two runs together."""
        return Counts(
            self.passed + later.passed,
            self.failed + later.failed,
            self.skipped + later.skipped,
            self.seconds + later.seconds,
            self.failures + later.failures,
        )


class RunFailed(RuntimeError):
    """pytest ended without a report, or with an exit code that its report does not explain."""


def run(environment: Environment, workers: int, log: Path) -> Counts:
    """Run all tests of the matrix.

    Args:
        environment: where.
        workers: test processes.
        log: gets the output of pytest.

    Raises:
        RunFailed: it is not known how many tests passed.
    """
    with log.open("wb") as output:
        brief = _pytest(environment, BRIEF, {}, ["--numprocesses", str(workers), "--dist=loadfile"], output)
        return brief.and_then(_pytest(environment, THOROUGH, {"AMQP_TEST_ALL": "1"}, [], output))


def _pytest(
    environment: Environment, paths: Sequence[str], more: dict[str, str], options: Sequence[str], output: BinaryIO
) -> Counts:
    report = environment.directory / "report.xml"
    report.unlink(missing_ok=True)
    command = [str(environment.interpreter), "-m", "pytest", "-q", f"--junitxml={report}", *options, *paths]
    # In CI a missing prerequisite is a failure: no cell passes with tests that were skipped for it.
    variables = environment.variables() | {"CI": "true"} | more
    done = subprocess.run(
        command,
        cwd=environment.tree,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if not report.exists():
        raise RunFailed(f"pytest ended with exit code {done.returncode} and without a report")
    counts = counted(report.read_text(encoding="utf-8"))
    if (done.returncode == 0) != (counts.failed == 0 and counts.passed > 0):
        raise RunFailed(f"pytest ended with exit code {done.returncode}, and {counts.passed} tests passed")
    return counts


def counted(report: str) -> Counts:
    """The counts of a report in the format of JUnit."""
    outcomes: dict[str, set[str]] = {}
    root = ET.fromstring(report)
    for case in root.iter("testcase"):  # one that passes, and fails in its teardown, is there twice
        name = f"{case.get('classname')}::{case.get('name')}"
        outcomes.setdefault(name, set()).update(outcome.tag for outcome in case)
    failures = tuple(name for name, found in outcomes.items() if found & {"failure", "error"})
    skipped = sum("skipped" in found for name, found in outcomes.items() if name not in failures)
    seconds = sum(float(suite.get("time", 0)) for suite in root.iter("testsuite"))
    return Counts(len(outcomes) - len(failures) - skipped, len(failures), skipped, seconds, failures)
