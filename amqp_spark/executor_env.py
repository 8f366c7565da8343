"""Tuning of the executor's Python worker that runs the tasks of the connector."""

from __future__ import annotations

import gc

from pyspark import TaskContext

_spared = False


def spare_collections() -> None:
    """Exclude all current objects from garbage collection, once per worker.

    The loop of a reused worker (``pyspark.daemon``) runs a full garbage collection after every task. With the modules
    of pyspark, pyarrow and numpy in memory that takes 40 ms of processor time, as much as decoding 30,000 messages.
    The objects that exist after the first task are mainly those modules, which live as long as the process:
    ``gc.freeze`` excludes them, and 2 ms remain. Reference counting is unaffected. Outside of a task nothing is done:
    the process may not be a Spark worker.
    """
    global _spared  # noqa: PLW0603 - one fact per process
    if not _spared and TaskContext.get() is not None:
        _spared = True
        gc.freeze()
