"""Writes of two tasks for the tests over executors in processes of their own."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from tests.broker.sink_scenarios import Target, put_file
from tests.support.query_process import Publishing

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.fixtures import Broker

ENTRIES = ("stream", "foreachBatch", "batch")
FILES = 4
PER_FILE = 3000
PER_TASK = 2 * PER_FILE
"""Two cores: Spark reads four small files in two tasks, each of which sends two blocks."""
COUNT = FILES * PER_FILE


def prepare(broker: Broker, queue: str, tmp_path: Path, entry: str, lose: dict[str, Any] | None = None) -> Publishing:
    """Files with rows 0 to ``COUNT``, and a write of these to a queue; a stream has one batch."""
    write = Publishing(
        name=uuid.uuid4().hex,
        entry=entry,
        options=Target(broker, queue).options(),
        directory=tmp_path,
        files_per_batch=FILES,
        lose=lose,
    )
    for begin in range(0, COUNT, PER_FILE):
        put_file(write.rows, begin, begin + PER_FILE)
    return write
