"""Runs a group of cases and returns the results; repeats cases whose query ended before its point."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.matrix.flows import Group, shortened
from tests.matrix.judging import judge
from tests.matrix.results import Result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.matrix.cases import Case
    from tests.matrix.place import Place
    from tests.matrix.subjects import Subject

_SETTLE_S = 12.0


def run(place: Place, cases: Sequence[Case], seed: int) -> list[Result]:
    """Run cases with the same victims; one result for each."""
    place.revive()
    results = _run(place, cases, seed)
    again = [case for case, result in zip(cases, results, strict=True) if result.missed and not result.problems]
    if again:  # the query ended before the point: now the first pass counts
        better = {result.case: result for result in _run(place, again, seed, relaxed=True)}
        results = [better.get(result.case, result) for result in results]
    return results


def _run(place: Place, cases: Sequence[Case], seed: int, *, relaxed: bool = False) -> list[Result]:
    begun = time.monotonic()
    subjects = [place.subject(case, seed, relaxed=relaxed) for case in cases]
    Group(place, subjects).run()
    took = (time.monotonic() - begun) / len(subjects)
    results = [_result(place, subject, seed, took) for subject in subjects]
    for subject in subjects:
        subject.remove(place.client(subject.vhost))
    return results


def _result(place: Place, subject: Subject, seed: int, took: float) -> Result:
    deadline = time.monotonic() + _SETTLE_S
    while (dirt := subject.dirt(place.client(subject.vhost))) and time.monotonic() < deadline:
        time.sleep(0.1)
    client = place.client(subject.vhost)
    verdict = judge(subject, subject.copies(client), dirt)
    return Result.of(
        subject.case,
        seed=seed,
        messages=subject.sent,
        lost=verdict.lost,
        duplicated=verdict.duplicated,
        gone=verdict.gone,
        recover_s=subject.recover_s,
        took_s=round(took, 2),
        restarts=subject.restarts,
        missed=subject.missed,
        problems=list(verdict.problems),
        errors=[shortened(error) for error in subject.errors],
        log=place.driver.log(20_000) if verdict.problems else "",
        plan=str(subject.plan),
    )
