"""A careful consumer with python-qpid-proton and pyarrow, for Broker-J over AMQP 1.0.

``python -m tests.bench.peers.proton_script QUEUE COUNT DIRECTORY``; the broker is that of ``PEER_HOST`` and so on.
Prefetch 5,000: proton grants credit for as many again as were taken, whatever is settled. Every 10,000 messages become
a table and a file; then they are accepted and settled, which proton puts into few frames.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from proton import Delivery
from proton.handlers import MessagingHandler
from proton.reactor import Container

from tests.bench.peers.files import Files, timed

PREFETCH = 5000
FILE_MESSAGES = 10_000


class Drain(MessagingHandler):  # type: ignore[misc]  # proton is not where mypy looks
    """Writes ``count`` messages of a queue to files, and settles them file by file."""

    def __init__(self, queue: str, count: int, files: Files) -> None:
        super().__init__(prefetch=PREFETCH, auto_accept=False)
        self._queue, self._left, self._files = queue, count, files
        self._unsettled: list[Any] = []

    def on_start(self, event: Any) -> None:
        connection = event.container.connect(
            f"amqp://{os.environ['PEER_HOST']}:{os.environ['PEER_PORT']}",
            user=os.environ["PEER_USERNAME"],
            password=os.environ["PEER_PASSWORD"],
            allowed_mechs="PLAIN",
            allow_insecure_mechs=True,
            reconnect=False,
        )
        event.container.create_receiver(connection, self._queue)

    def on_message(self, event: Any) -> None:
        message = event.message
        body, key, ids, stamps, headers = self._files.columns
        body.append(message.body)
        key.append(message.subject)
        ids.append(str(message.id))
        stamps.append(int(message.creation_time * 1e6))
        headers.append(message.properties)
        self._unsettled.append(event.delivery)
        self._left -= 1
        if len(body) == FILE_MESSAGES or not self._left:
            self._files.write()
            for delivery in self._unsettled:
                delivery.update(Delivery.ACCEPTED)
                delivery.settle()
            self._unsettled.clear()
            if not self._left:
                event.receiver.close()
                event.connection.close()


def main() -> None:
    """Do what the command line says. The clock covers connecting, a few milliseconds, and the close after the last."""
    queue, count, directory = sys.argv[1:]
    drain = Drain(queue, int(count), Files(Path(directory)))
    timed(Container(drain).run)


if __name__ == "__main__":
    main()
