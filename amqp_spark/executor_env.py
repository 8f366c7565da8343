"""What the connector does for the Python worker of an executor that runs its tasks."""

from __future__ import annotations

import gc

from pyspark import TaskContext

_spared = False


def spare_collections() -> None:
    """Once per worker: take what is in memory now out of reach of the garbage collector.

    The loop of a reused worker (``pyspark.daemon``) collects all garbage after every task. With the modules of
    pyspark, pyarrow and numpy in memory that is 40 ms of processor time each time, as much as 30,000 messages take to
    decode. What exists after the first task are those modules, which live as long as the process: ``gc.freeze`` leaves
    them out, and 2 ms remain. Reference counts go on as ever. Outside of a task nothing is done: the process belongs to
    somebody else.
    """
    global _spared  # noqa: PLW0603 - one fact per process
    if not _spared and TaskContext.get() is not None:
        _spared = True
        gc.freeze()
