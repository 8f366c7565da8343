"""A careful consumer with python-qpid-proton and pyarrow, for Broker-J over AMQP 1.0.

``python -m tests.bench.peers.proton_script QUEUE COUNT DIRECTORY``; the broker is that of ``PEER_HOST`` and so on.
Prefetch 5,000, and credit for more whenever half of it is used. Every 2,500 messages become a table and a file; then
they are accepted and settled, which proton puts into few frames. It takes deliveries itself, with one message object
for all: with ``MessagingHandler`` it takes 1.4 times the processor time.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from proton import Delivery, Handler, Message
from proton.reactor import Container

from tests.bench.peers.files import Files, timed

PREFETCH = 5000
FILE_MESSAGES = 2500


class Drain(Handler):  # type: ignore[misc]  # proton is not where mypy looks
    """Writes ``count`` messages of a queue to files, and settles them file by file."""

    def __init__(self, queue: str, count: int, files: Files) -> None:
        self._queue, self._left, self._files = queue, count, files
        self._granted = 0
        self._message = Message()
        self._unsettled: list[Any] = []
        self._receiver: Any = None

    def on_reactor_init(self, event: Any) -> None:
        connection = event.container.connect(
            f"amqp://{os.environ['PEER_HOST']}:{os.environ['PEER_PORT']}",
            user=os.environ["PEER_USERNAME"],
            password=os.environ["PEER_PASSWORD"],
            allowed_mechs="PLAIN",
            allow_insecure_mechs=True,
            reconnect=False,
        )
        self._receiver = event.container.create_receiver(connection, self._queue)
        self._grant()

    def on_delivery(self, event: Any) -> None:
        delivery, receiver, message = event.delivery, self._receiver, self._message
        if delivery.partial:
            return
        message.decode(receiver.recv(delivery.pending))
        receiver.advance()
        body, key, ids, stamps, headers = self._files.columns
        body.append(message.body)
        key.append(message.address)
        ids.append(str(message.id))
        stamps.append(int(message.creation_time * 1e6))
        headers.append(message.properties)
        self._unsettled.append(delivery)
        self._left -= 1
        self._granted -= 1
        if self._granted < PREFETCH // 2:
            self._grant()
        if len(body) == FILE_MESSAGES or not self._left:
            self._files.write()
            for settled in self._unsettled:
                settled.update(Delivery.ACCEPTED)
                settled.settle()
            self._unsettled.clear()
            if not self._left:
                event.connection.close()

    def on_transport_error(self, event: Any) -> None:
        raise RuntimeError(f"the connection failed: {event.transport.condition}")

    def on_connection_remote_close(self, event: Any) -> None:
        if self._left:
            raise RuntimeError(f"the broker closed the connection: {event.connection.remote_condition}")

    def on_link_remote_close(self, event: Any) -> None:
        if self._left:
            raise RuntimeError(f"the broker ended the subscription: {event.link.remote_condition}")

    def _grant(self) -> None:
        more = PREFETCH - self._granted
        self._receiver.flow(more)
        self._granted += more


def main() -> None:
    """Do what the command line says. The clock covers connecting, a few milliseconds, and the close after the last."""
    queue, count, directory = sys.argv[1:]
    drain = Drain(queue, int(count), Files(Path(directory)))
    timed(Container(drain).run)


if __name__ == "__main__":
    main()
