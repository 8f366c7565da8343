"""Which test module a process runs next."""

from __future__ import annotations

import re
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING

from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from xdist.workermanage import WorkerController


class Kind(IntEnum):
    """What a test needs; a module has the least kind of its tests. Small ones come last: processes end together."""

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


class SparkApart(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Half of the processes prefer modules with a Spark, the others prefer those without.

    So there are half as many Sparks, each of which has to start and to compile its code, and some tests use the
    processor while others wait. Where a process finds no module that it prefers, it takes the first one.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        with_spark = self.nodes.index(node) < (len(self.nodes) + 1) // 2
        paths = {module: self.config.rootpath / module for module in self.workqueue}
        preferred = (module for module, path in paths.items() if _has_spark(path) is with_spark)
        if (module := next(preferred, None)) is not None:
            self.workqueue.move_to_end(module, last=False)
        super()._assign_work_unit(node)


@cache
def _has_spark(module: Path) -> bool:
    # From its text: only the test processes collect tests and know their markers.
    return re.search(r"\bmark\.spark\b", module.read_text(encoding="utf-8")) is not None
