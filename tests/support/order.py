"""The order of the test modules, of which each test process takes the next whenever it has ended one."""

from __future__ import annotations

from collections import Counter
from enum import IntEnum
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

Module = TypeVar("Module")


class Kind(IntEnum):
    """What a test needs; a module has the least kind of its tests."""

    LONG = 0
    """A time limit above that of other tests."""
    SPARK = 1
    """A Spark, which uses all processor time that it gets."""
    BROKER = 2
    """A broker and no Spark: such tests wait for a part of their time."""
    SMALL = 3

    @classmethod
    def of(cls, item: pytest.Item) -> Kind:
        """The kind of a test, from its markers."""
        limit = item.get_closest_marker("timeout")
        if limit is not None and [*limit.args, *limit.kwargs.values()][0] > 300:
            return cls.LONG
        if item.get_closest_marker("spark") is not None:
            return cls.SPARK
        return cls.BROKER if item.get_closest_marker("broker") is not None else cls.SMALL


def in_turn(kinds: Mapping[Module, Kind]) -> dict[Module, tuple[int, float]]:
    """Places to sort modules by: long ones first, small ones last, so that no process is idle at the end; between them
    those with a Spark and those with a broker only, evenly mixed, so that some use the processor while others wait."""
    counts = Counter(kinds.values())
    seen: Counter[Kind] = Counter()
    places: dict[Module, tuple[int, float]] = {}
    for module, kind in kinds.items():
        is_mixed = kind in {Kind.SPARK, Kind.BROKER}
        places[module] = (Kind.SPARK if is_mixed else kind), (seen[kind] / counts[kind] if is_mixed else 0.0)
        seen[kind] += 1
    return places
