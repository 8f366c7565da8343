"""Compares received messages with the guarantee. This module does not access a broker."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.matrix.cases import ALO, EO, MEMORY_BROKER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.matrix.subjects import Subject

BODY_SQL: Final = (
    "concat(CAST(id AS STRING), ':', CAST(crc32(CAST(CAST(id AS STRING) AS BINARY)) AS STRING), ':', "
    "repeat('x', CAST(id % 97 AS INT)))"
)
""":func:`body_of` of a column ``id``."""
_CLEAR: Final = re.compile(r"\b(StateError|OffsetError|SpoolError|NotFound)\b")


def body_of(number: int) -> bytes:
    """The body of a message: contains its number, and is compared whole."""
    text = str(number)
    return f"{text}:{zlib.crc32(text.encode())}:{'x' * (number % 97)}".encode()


def number_of(body: bytes) -> int:
    """The number of a message; -1 if the body differs from the published one."""
    text = body.partition(b":")[0]
    if text.isdigit() and body_of(int(text)) == body:
        return int(text)
    return -1


def counted(bodies: Iterable[bytes]) -> Counter[int]:
    """How often each message has arrived; -1 stands for bodies that were not published."""
    return Counter(map(number_of, bodies))


def is_clear(error: str) -> bool:
    """Whether the error of a query states that data it needs is lost."""
    return _CLEAR.search(error) is not None


@dataclass(frozen=True)
class Verdict:
    """Result of a run.

    Attributes:
        lost: messages that have not arrived.
        duplicated: messages that have arrived more than once, counted once each.
        problems: broken guarantees.
        gone: messages that were lost with the memory of the broker.
    """

    lost: int
    duplicated: int
    problems: tuple[str, ...]
    gone: int = 0


def judge(subject: Subject, copies: Counter[int], dirt: Sequence[str]) -> Verdict:
    """Compare received with published messages, and check that nothing was left behind."""
    expected = range(subject.sent)
    lost = [number for number in expected if number not in copies]
    twice = [number for number in expected if copies[number] > 1]
    foreign = {number: count for number, count in copies.items() if number not in expected}
    guarantee = subject.case.guarantee
    problems = list(subject.problems)
    forgetful = MEMORY_BROKER in subject.case.victims
    if lost and forgetful and not any(map(is_clear, subject.errors)):
        problems.append(f"{len(lost)} went with the memory of the broker, and no error of the query says so")
    if lost and guarantee in {EO, ALO} and not forgetful:
        problems.append(f"{len(lost)} lost, first {lost[:5]}")
    if twice and guarantee != ALO:
        problems.append(f"{len(twice)} duplicated, first {twice[:5]}")
    if foreign:
        problems.append(f"{sum(foreign.values())} arrived that were not published: {sorted(foreign)[:5]}")
    if not forgetful:
        problems += dirt
    return Verdict(0 if forgetful else len(lost), len(twice), tuple(problems), len(lost) if forgetful else 0)
