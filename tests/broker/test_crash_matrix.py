"""A sample of the crash matrix (``make crash-matrix`` runs all of it): every point, with victims spread over them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from amqp_spark import crashpoints
from tests.matrix import runs
from tests.matrix.cases import (
    ALO,
    AMO,
    ELSEWHERE,
    EO,
    KINDS,
    POINTS,
    QUORUM_POINTS,
    SINK_POINTS,
    SOURCE_POINTS,
    Case,
    all_cases,
    groups,
    quorum_cases,
    sample,
)
from tests.matrix.place import Place, driver_of
from tests.matrix.results import how_to_repeat
from tests.matrix.servers import BROKER_J, SERVERS
from tests.support import choice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.matrix.servers import Server
    from tests.support.query_process import CrashPoints, QueryProcess
    from tests.support.rabbitmq import RabbitMQNode

SEED = 1
GROUPS = groups(sample(SEED), 9, SEED)


def chosen(group: list[Case]) -> list[Case]:
    """What ``make test`` runs of a victim's cases: the first of the source, and the first that has a sink. Tests of one
    process lose connections at all points."""
    if choice.all_cases():
        return group
    return list({case.writes: case for case in reversed(group)}.values())


def test_every_point_of_the_code_is_in_the_matrix() -> None:
    named = {*crashpoints.POINTS, *crashpoints.SINK_POINTS}
    named |= {*crashpoints.EXACTLY_ONCE_POINTS, *crashpoints.EXACTLY_ONCE_SINK_POINTS}
    named |= {*crashpoints.QUORUM_POINTS, *crashpoints.RECOGNITION_POINTS}
    assert named == set(POINTS) | ELSEWHERE


def test_the_sample_passes_every_point() -> None:
    assert {step.point for case in sample(SEED) for step in case.steps} == {*SOURCE_POINTS, *SINK_POINTS}


def test_the_sample_strikes_exactly_once_wherever_it_comes_past() -> None:
    struck = {step.point for case in sample(SEED) if case.guarantee == EO for step in case.steps}
    points = (SOURCE_POINTS | SINK_POINTS).values()
    assert struck >= {point.name for point in points if EO in point.guarantees}


def test_the_points_of_quorum_queues_are_struck_by_every_victim_that_can_be_there() -> None:
    struck = {(step.point, step.victim) for case in quorum_cases() for step in case.steps}
    for point in QUORUM_POINTS:
        assert {victim for at, victim in struck if at == point} >= {
            "driver", "reader", "connection", "broker", "freeze", "orphan",
        }  # fmt: skip


def test_the_sample_is_small_and_leaves_no_guarantee_out() -> None:
    cases = sample(SEED)
    assert len(cases) <= 45
    assert len(GROUPS) <= 7
    assert {case.guarantee for case in cases} == {EO, ALO, AMO}
    assert {case.kind for case in cases} == set(KINDS)


def test_what_make_test_chooses_strikes_each_victim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AMQP_TEST_ALL", raising=False)
    found = [case for group in GROUPS if len(group) > 1 for case in chosen(group)]
    assert {case.victims[0] for case in found if case.reads} >= {"driver", "reader", "worker", "connection"}
    assert {case.victims[0] for case in found if case.writes} >= {"driver", "committer", "worker", "connection"}
    assert {case.kind.partition("-")[0] for case in found} == {"source", "sink", "chain"}


def test_a_case_is_found_again_by_its_name() -> None:
    cases = all_cases(2, quorum=True)
    assert [Case.parse(str(case)) for case in cases] == cases
    assert len({str(case) for case in cases}) == len(cases)


@pytest.fixture(scope="module")
def driver(points: CrashPoints) -> Iterator[QueryProcess]:
    """One for all brokers: a Spark takes longer to start than most cases."""
    driver = driver_of(points)
    yield driver
    driver.close()


@pytest.fixture(scope="module")
def at(driver: QueryProcess, points: CrashPoints) -> Callable[[Server], Place]:
    """A function that makes the place of cases at a broker of its own."""
    return lambda server: Place(server=server, given_driver=driver, points=points)


@pytest.fixture(scope="module")
def place(at: Callable[[Server], Place]) -> Iterator[Place]:
    with at(BROKER_J) as place:
        yield place


# A few cases on RabbitMQ, with every kind of process that runs there: the whole matrix is for `make crash-matrix`.
ON_RABBITMQ = [
    [
        Case.parse(f"source:at-least-once:{crashpoints.PARTITIONS_RETURNED}@broker#0"),
        Case.parse(f"sink-stream:at-least-once:{crashpoints.ALL_SENT}@broker#0"),
    ],
    [Case.parse(f"source:at-least-once:{crashpoints.COMMIT_LOGGED}@reader#0")],
    [Case.parse(f"sink-stream:at-least-once:{crashpoints.BLOCK_SENT}@worker#0")],
    [Case.parse(f"source:at-least-once:{crashpoints.ACCEPT_UNSENT}@freeze#0")],
]


@pytest.fixture(scope="module")
def quorum_place(rabbitmq: RabbitMQNode, at: Callable[[Server], Place]) -> Iterator[Place]:
    """A node of its own, since it is killed; the shared one shows that there is a RabbitMQ."""
    del rabbitmq
    with at(SERVERS["rabbitmq-quorum"]) as place:
        yield place


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.sampled("group", every=4)
@pytest.mark.parametrize("group", ON_RABBITMQ, ids=lambda group: f"{group[0].victim} x {len(group)}")
def test_promises_are_kept_on_rabbitmq(quorum_place: Place, group: list[Case]) -> None:
    check(quorum_place, group)


# The durable embedded broker is killed while transactions of all kinds are under way. `make crash-matrix` has the rest.
ON_BOX = [
    [
        Case.parse(f"chain-stream:exactly-once:{crashpoints.TX_SENT}@broker#0"),
        Case.parse(f"sink-foreachBatch:exactly-once:{crashpoints.DECISION_COMMITTED}@broker#0"),
    ],
    [
        Case.parse(f"source:exactly-once:{crashpoints.SPOOL_RENAMED}@broker#0"),
        Case.parse(f"sink-stream:exactly-once:{crashpoints.PREPARED}@broker#0"),
    ],
]


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.sampled("group", every=2)
@pytest.mark.parametrize("group", ON_BOX, ids=lambda group: str(group[0].kind))
def test_promises_are_kept_on_the_embedded_broker(at: Callable[[Server], Place], group: list[Case]) -> None:
    with at(SERVERS["box"]) as place:
        check(place, chosen(group))


@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "group",
    [pytest.param(group, marks=pytest.mark.thorough if len(group) == 1 else ()) for group in GROUPS],
    ids=lambda group: f"{group[0].victim} x {len(group)}",
)
def test_promises_are_kept(place: Place, group: list[Case]) -> None:
    check(place, chosen(group))


def check(place: Place, group: list[Case]) -> None:
    """Run a group of cases; each must keep its promise."""
    results = runs.run(place, group, SEED)
    bad = [result for result in results if not result.good]
    assert not bad, "\n".join(
        f"{result.case}: {result.problems or f'not reached: {result.missed}'}\n"
        f"  {how_to_repeat(result)}\n  {result.errors}\n{result.log[-3000:]}"
        for result in bad
    )
