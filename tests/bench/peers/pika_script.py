"""A careful consumer with pika and pyarrow, for RabbitMQ.

``python -m tests.bench.peers.pika_script QUEUE COUNT DIRECTORY``; the server is that of ``PEER_HOST`` and so on.
Prefetch 2,000; every 1,000 messages become a table and a file, and one multiple acknowledgement follows the file, so
that the server always has room to send.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pika

from tests.bench.peers.files import Files, timed

PREFETCH = 2000
FILE_MESSAGES = 1000


def drain(channel: pika.adapters.blocking_connection.BlockingChannel, queue: str, count: int, files: Files) -> None:
    """Write ``count`` messages of a queue to files, and acknowledge them file by file."""
    body, key, ids, stamps, headers = files.columns
    channel.basic_qos(prefetch_count=PREFETCH)
    for done, (method, properties, content) in enumerate(channel.consume(queue), 1):
        body.append(content)
        key.append(method.routing_key)
        ids.append(properties.message_id)
        stamps.append(None if properties.timestamp is None else properties.timestamp * 1_000_000)
        headers.append(properties.headers)
        if len(body) == FILE_MESSAGES or done == count:
            files.write()
            channel.basic_ack(method.delivery_tag, multiple=True)
            if done == count:
                break
    channel.cancel()


def main() -> None:
    """Do what the command line says."""
    queue, count, directory = sys.argv[1:]
    host, port, vhost, user, password = (
        os.environ[f"PEER_{name}"] for name in ("HOST", "PORT", "VHOST", "USERNAME", "PASSWORD")
    )
    login = pika.PlainCredentials(user, password)
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port), vhost, login, heartbeat=0))
    channel = connection.channel()
    timed(lambda: drain(channel, queue, int(count), Files(Path(directory))))
    connection.close()


if __name__ == "__main__":
    main()
