"""The Parquet files of the scripts in Python, and their clock."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HEADERS = pa.struct([("symbol", pa.string()), ("qty", pa.int32()), ("price", pa.float64())])
FIELDS: list[pa.Field[Any]] = [
    pa.field("body", pa.binary()),
    pa.field("routing_key", pa.string()),
    pa.field("message_id", pa.string()),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("application_headers", HEADERS),
]
SCHEMA = pa.schema(FIELDS)


class Files:
    """A directory of files, and ``columns`` of the next one, in the order of SCHEMA, to append to."""

    def __init__(self, directory: Path) -> None:
        self.columns: list[list[object]] = [[] for _ in SCHEMA.names]
        self._directory = directory
        self._written = 0

    def write(self) -> None:
        """Write what the columns have into a new file, and empty them."""
        table = pa.table(dict(zip(SCHEMA.names, self.columns, strict=True)), schema=SCHEMA)
        pq.write_table(table, self._directory / f"{self._written:06d}.parquet")
        self._written += 1
        for column in self.columns:
            column.clear()


def timed(work: Callable[[], object]) -> None:
    """Do the work; print its seconds and its processor time, as JSON."""
    begin, processor = time.perf_counter(), time.process_time()
    work()
    print(json.dumps({"seconds": time.perf_counter() - begin, "processor_s": time.process_time() - processor}))
