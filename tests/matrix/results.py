"""The record of the matrix: one JSON line per run, a table of all, evidence of failures."""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.matrix.servers import SERVERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.matrix.cases import Case

BUILD = Path(__file__).parents[2] / "build"


@functools.cache
def code_version() -> str:
    """The tested version: the commit, or ``AMQP_SPARK_CODE`` if there is no repository."""
    given = os.environ.get("AMQP_SPARK_CODE")
    if given is not None:
        return given
    command = ["git", "describe", "--always", "--dirty"]
    found = subprocess.run(command, cwd=BUILD.parent, capture_output=True, text=True, check=False)
    return found.stdout.strip()


@dataclass
class Result:
    """One run of a case."""

    case: str
    kind: str
    guarantee: str
    point: str
    victim: str
    round: int
    seed: int
    messages: int = 0
    lost: int = 0
    duplicated: int = 0
    gone: int = 0
    """Messages lost with the memory of a broker."""
    recover_s: float | None = None
    took_s: float = 0.0
    restarts: int = 0
    missed: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    log: str = ""
    plan: str = ""
    code: str = field(default_factory=code_version)
    """The commit that was run."""
    broker: str = ""
    """The URL of a broker that was given, or the kind of another one than Broker-J with 0-10."""

    @classmethod
    def of(cls, case: Case, *, seed: int, **what: Any) -> Self:
        """Make the result of a case; ``what``: values of further fields, by name."""
        return cls(
            case=str(case),
            kind=case.kind,
            guarantee=case.guarantee,
            point=case.point,
            victim=case.victim,
            round=case.round,
            seed=seed,
            **what,
        )

    @property
    def good(self) -> bool:
        """Whether every promise was kept, and every point reached."""
        return not self.problems and not self.missed


class Record:
    """``build/crash-matrix.jsonl``: results are appended, the last one of a case and seed counts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results: dict[tuple[str, int], Result] = {}

    def load(self) -> None:
        """Load the existing results."""
        if not self.path.exists():
            return
        known = {each.name for each in fields(Result)}
        for line in self.path.read_text(encoding="utf-8").splitlines():
            value: dict[str, Any] = json.loads(line)
            self._keep(Result(**{key: each for key, each in value.items() if key in known}))

    def clear(self) -> None:
        """Delete all results."""
        self.path.unlink(missing_ok=True)
        self.results.clear()

    def add(self, result: Result) -> None:
        """Append a result."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        value = asdict(result)
        del value["log"]
        with self.path.open("a", encoding="utf-8") as out:
            out.write(json.dumps(value) + "\n")
        self._keep(result)
        evidence = self._evidence(result)
        if result.good:
            evidence.unlink(missing_ok=True)  # of an earlier run
        else:
            self._keep_evidence(result, evidence)

    def has(self, case: str, seed: int) -> bool:
        """Whether the case was run successfully."""
        found = self.results.get((case, seed))
        return found is not None and found.good

    def left(self, cases: Iterable[Case], seed: int) -> list[Case]:
        """Cases that were not run, or failed."""
        return [case for case in cases if not self.has(str(case), seed)]

    def _keep(self, result: Result) -> None:
        self.results[result.case, result.seed] = result

    def _evidence(self, result: Result) -> Path:
        name = "".join(c if c.isalnum() or c in "-#@+" else "_" for c in result.case)
        return self.path.parent / f"{self.path.stem}-failures" / f"{name}.{result.seed}.txt"

    def _keep_evidence(self, result: Result, path: Path) -> None:
        parts = [
            f"{result.case} (seed {result.seed})",
            f"repeat it: {how_to_repeat(result)}",
            f"plan: {result.plan}",
            f"missed: {result.missed}",
            *(f"problem: {problem}" for problem in result.problems),
            *(f"error of the query:\n{error}" for error in result.errors),
            f"end of the driver's log:\n{result.log}",
        ]
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n\n".join(parts), encoding="utf-8")


def how_to_repeat(result: Result) -> str:
    """The command for this run alone; a failed run is repeated, and all other results are kept."""
    option = "--broker" if result.broker in SERVERS else "--url"
    where = f" {option} {result.broker}" if result.broker else ""
    return f'make crash-matrix ARGS="--seed {result.seed} --case {result.case}{where}"'


COLUMNS = ("point", "victim", "kind", "guarantee", "runs", "lost", "duplicated", "recovery s (median, max)")


def table(results: Iterable[Result]) -> str:
    """All runs in Markdown, one row per point, victim, kind and guarantee; missed ones are not counted."""
    rows: dict[tuple[str, str, str, str], list[Result]] = {}
    for result in results:
        if not result.missed:
            rows.setdefault((result.point, result.victim, result.kind, result.guarantee), []).append(result)
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    for key, found in sorted(rows.items(), key=lambda item: (item[0][3], item[0][2], item[0][0], item[0][1])):
        lost, twice = sum(each.lost for each in found), sum(each.duplicated for each in found)
        bad = sum(not each.good for each in found)
        gone = sum(each.gone for each in found)
        runs = f"{len(found)} ({bad} failed)" if bad else str(len(found))
        shown = f"{lost} (and {gone} with the broker's memory)" if gone else str(lost)
        cells = [*key, runs, shown, str(twice), _seconds(found)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def summary(results: Sequence[Result]) -> str:
    """Totals by kind and guarantee."""
    totals: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        totals.setdefault((result.guarantee, result.kind), []).append(result)
    lines = [
        "| guarantee | kind | runs | messages | lost | duplicated | failed | recovery s (median, max) |",
        "|---" * 8 + "|",
    ]
    for (guarantee, kind), found in sorted(totals.items()):
        done = [each for each in found if not each.missed]
        lines.append(
            f"| {guarantee} | {kind} | {len(done)} | {sum(each.messages for each in done)} "
            f"| {sum(each.lost for each in done)} | {sum(each.duplicated for each in done)} "
            f"| {sum(not each.good for each in found)} | {_seconds(done)} |"
        )
    return "\n".join(lines) + "\n"


def _seconds(results: Sequence[Result]) -> str:
    times = [each.recover_s for each in results if each.recover_s is not None]
    return f"{statistics.median(times):.1f}, {max(times):.1f}" if times else "-"
