"""A careful consumer with pika and pyarrow: what a user of RabbitMQ writes by hand to get a queue into Parquet.

``python peer_script.py HOST PORT VHOST USER PASSWORD QUEUE COUNT DIRECTORY``. Prefetch 2,000; every 1,000 messages
become a table and a file, and one multiple acknowledgement follows the file, so that nothing is acknowledged that is
not on disk and the server always has room to send. It prints its seconds, from the first delivery wanted to the last
acknowledgement, and its processor time in those.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pika
import pyarrow as pa
import pyarrow.parquet as pq

PREFETCH = 2000
FILE_MESSAGES = 1000
HEADERS = pa.struct([("symbol", pa.string()), ("qty", pa.int32()), ("price", pa.float64())])
FIELDS: list[pa.Field[Any]] = [
    pa.field("body", pa.binary()),
    pa.field("routing_key", pa.string()),
    pa.field("message_id", pa.string()),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("application_headers", HEADERS),
]
SCHEMA = pa.schema(FIELDS)


def drain(channel: pika.adapters.blocking_connection.BlockingChannel, queue: str, count: int, directory: Path) -> None:
    """Write ``count`` messages of a queue to files, and acknowledge them file by file."""
    columns: dict[str, list[object]] = {name: [] for name in SCHEMA.names}
    body, key, ids, stamps, headers = columns.values()
    channel.basic_qos(prefetch_count=PREFETCH)
    for done, (method, properties, content) in enumerate(channel.consume(queue), 1):
        body.append(content)
        key.append(method.routing_key)
        ids.append(properties.message_id)
        stamps.append(None if properties.timestamp is None else properties.timestamp * 1_000_000)
        headers.append(properties.headers)
        if len(body) == FILE_MESSAGES or done == count:
            pq.write_table(pa.table(columns, schema=SCHEMA), directory / f"{done:09d}.parquet")
            channel.basic_ack(method.delivery_tag, multiple=True)
            for column in columns.values():
                column.clear()
            if done == count:
                break
    channel.cancel()


def main() -> None:
    """Do what the command line says."""
    host, port, vhost, user, password, queue, count, directory = sys.argv[1:]
    login = pika.PlainCredentials(user, password)
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port), vhost, login, heartbeat=0))
    channel = connection.channel()
    begin, processor = time.perf_counter(), time.process_time()
    drain(channel, queue, int(count), Path(directory))
    print(json.dumps({"seconds": time.perf_counter() - begin, "processor_s": time.process_time() - processor}))
    connection.close()


if __name__ == "__main__":
    main()
