"""The cells of the matrix: which Spark on which Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection

SPARKS: Final = ("4.2", "4.3")
"""Rows; of each the newest release that the package index has."""
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
"""Columns; those of the classifiers in pyproject.toml."""


class Cell(NamedTuple):
    """One Spark on one Python, both as major and minor version."""

    spark: str
    python: str

    @property
    def requirement(self) -> str:
        """The requirement for pip that installs this Spark."""
        return f"pyspark[connect]=={self.spark}.*"

    @property
    def is_oldest(self) -> bool:
        """Whether it has the oldest Spark and Python, and so the oldest of the other libraries."""
        return self == (SPARKS[0], PYTHONS[0])

    def __str__(self) -> str:
        return f"Spark {self.spark} on Python {self.python}"


def chosen(sparks: Collection[str] = (), pythons: Collection[str] = ()) -> list[Cell]:
    """The cells with these versions; of a kind that is empty, all."""
    return [
        Cell(spark, python)
        for spark in SPARKS
        for python in PYTHONS
        if (not sparks or spark in sparks) and (not pythons or python in pythons)
    ]
