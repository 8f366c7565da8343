"""The program of :mod:`tests.broker.killed_readers`: a query without a JVM, whose logs and sink are files.

It does what Spark does: logs the end of a batch, reads it, writes it (idempotent by batch), logs its commit.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from amqp_spark.connect import connect
from amqp_spark.datasource.log.stream_reader import AmqpLogStreamReader
from amqp_spark.datasource.stream_reader import AmqpStreamReader
from amqp_spark.options import STREAM, SourceOptions
from tests.broker.log_support import log_plan
from tests.broker.source_0_9_support import MessagePlan
from tests.spark.driver import Driver, through_json
from tests.spark.reader_support import BodyPlan

if TYPE_CHECKING:
    from amqp_spark.arrow.decode import ColumnPlan


def put(path: Path, value: Any) -> None:
    """Write a file that is there as a whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value))
    part.rename(path)


class Query(Driver):
    """A query that goes on where its files end."""

    def __init__(self, reader: Any, directory: Path) -> None:
        super().__init__(reader)
        self.directory = directory
        for name in ("offsets", "commits", "sink"):
            (directory / name).mkdir(exist_ok=True)
        logged = sorted((directory / "offsets").glob("*.json"))
        self.offsets = [json.loads(path.read_text()) for path in logged]
        self.commits = len(list((directory / "commits").glob("*.json")))

    def run(self, stop_at: Path) -> None:
        """Run until a file says that everything was published, and everything was read."""
        if len(self.offsets) > self.commits:
            if self.commits == 0:
                self.reader.initialOffset()
            self.do(self.start, self.offsets[self.commits])
        while True:
            start = self.start
            end = self.latest()
            if end == start:
                if stop_at.exists():
                    (self.directory / "idle").write_text(str(os.getpid()))
                continue
            put(self.directory / "offsets" / f"{len(self.offsets):06d}.json", end)
            self.offsets.append(end)
            if self.commits:
                self.reader.commit(through_json(start))
            self.do(start, end)

    def do(self, start: dict[str, Any], end: dict[str, Any]) -> None:
        """Process a batch."""
        rows = self.read(self.reader.partitions(through_json(start), through_json(end)))
        name = f"{self.commits:06d}.json"
        put(self.directory / "sink" / name, [base64.b64encode(row[2]).decode() for row in rows])
        put(self.directory / "commits" / name, 0)
        self.commits += 1


def reader_of(options: SourceOptions) -> Any:
    """The reader that the options ask for, as the data source chooses it."""
    if options.queue_type == STREAM:
        return AmqpLogStreamReader(options, log_plan(), connector=connect)
    plan = BodyPlan() if options.protocol == "0-10" else MessagePlan()
    return AmqpStreamReader(options, cast("ColumnPlan", plan), connector=connect)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    directory = Path(sys.argv[1])
    options = SourceOptions.parse(json.loads((directory / "options.json").read_text()))
    Query(reader_of(options), directory).run(directory / "complete")


if __name__ == "__main__":
    main()
