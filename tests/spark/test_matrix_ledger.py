"""The soak can fail: missing, doubled, foreign or damaged messages are reported; of unknown ones only a second copy."""

from __future__ import annotations

import pytest

from tests.matrix.ledger import Ledger, body_of


def ledger(*found: int, damaged: tuple[bytes, ...] = ()) -> Ledger:
    """0 to 4 were published, 7 and 8 perhaps."""
    ledger = Ledger(sure=set(range(5)), unsure={7, 8})
    ledger.take([body_of(number) for number in found])
    ledger.take(damaged)
    return ledger


@pytest.mark.parametrize("found", [(4, 3, 2, 1, 0), (0, 1, 2, 3, 4, 7), (0, 7, 1, 8, 2, 3, 4)])
def test_exactly_once_is_no_problem_whatever_came_of_the_unsure(found: tuple[int, ...]) -> None:
    assert ledger(*found).problems() == []


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ((0, 1, 2, 4, 7), "1 lost, first [3]"),
        ((0, 1, 2, 3, 4, 3), "1 duplicated, first [3]"),
        ((0, 1, 2, 3, 4, 7, 7), "1 duplicated, first [7]"),
        ((0, 1, 2, 3, 4, 6), "1 never published, first [6]"),
        ((), "5 lost, first [0, 1, 2, 3, 4]"),
    ],
)
def test_what_differs_is_told(found: tuple[int, ...], problem: str) -> None:
    assert problem in ledger(*found).problems()


def test_one_lost_and_one_doubled_do_not_make_up_for_each_other() -> None:
    assert ledger(0, 1, 2, 4, 4).problems() == [
        "1 lost, first [3]",
        "1 duplicated, first [4]",
        "the sums of the ids differ",
    ]


@pytest.mark.parametrize(
    "body",
    [body_of(3)[:-1], body_of(3) + b"x", b"3:", b"03" + body_of(3)[1:]],
    ids=["cut", "longer", "without its bytes", "a zero more"],
)
def test_a_damaged_body_is_told(body: bytes) -> None:
    assert len(body_of(3)) > len(b"3:")
    assert ledger(0, 1, 2, 4, damaged=(body,)).problems() == ["1 arrived with other bytes"]


@pytest.mark.parametrize("body", [b"", b":", b"x" + body_of(3), b"\xff\xfe", b"-3:abc"])
def test_a_body_without_an_id_is_told(body: bytes) -> None:
    problems = ledger(0, 1, 2, 3, 4, damaged=(body,)).problems()
    assert "1 never published, first [-1]" in problems
    assert "1 arrived with other bytes" in problems
