"""Published and received messages of the soak. This module does not access a broker."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST_BYTES = 3000


def body_of(number: int) -> bytes:
    """The id, and a number of bytes derived from it."""
    draw = random.Random(number)
    return f"{number}:".encode() + draw.randbytes(draw.randint(0, _MOST_BYTES))


@dataclass
class Ledger:
    """Published ids.

    Attributes:
        sure: the broker has confirmed them.
        unsure: it is unknown whether the broker has them.
        arrived: how often each has arrived; -1 stands for bodies without an id.
        damaged: bodies that do not match their ids.
    """

    sure: set[int] = field(default_factory=set)
    unsure: set[int] = field(default_factory=set)
    arrived: Counter[int] = field(default_factory=Counter)
    damaged: int = 0

    def take(self, found: Iterable[bytes]) -> None:
        """Record received bodies."""
        for body in found:
            text = body.partition(b":")[0]
            number = int(text) if text.isdigit() else -1
            self.damaged += body != body_of(number)
            self.arrived[number] += 1

    def problems(self) -> list[str]:
        """Deviations from exactly once: by set, count and sum of the ids."""
        lost = sorted(self.sure - set(self.arrived))
        twice = sorted(number for number, count in self.arrived.items() if count > 1)
        foreign = sorted(set(self.arrived) - self.sure - self.unsure)
        found = []
        for what, numbers in (("lost", lost), ("duplicated", twice), ("never published", foreign)):
            if numbers:
                found.append(f"{len(numbers)} {what}, first {numbers[:10]}")
        if self.damaged:
            found.append(f"{self.damaged} arrived with other bytes")
        expected = self.sure | (self.unsure & set(self.arrived))
        if self.arrived.total() != len(expected):
            found.append(f"{self.arrived.total()} arrived, not {len(expected)}")
        if sum(number * count for number, count in self.arrived.items()) != sum(expected):
            found.append("the sums of the ids differ")
        return found
