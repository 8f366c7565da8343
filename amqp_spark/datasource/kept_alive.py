"""A client whose connection lives on while its user does not use it."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Final, Self

from amqp_core.errors import AmqpError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqp_core.api import Client

SERVICES_PER_HEARTBEAT: Final = 4


class KeptAlive:
    """Services a client on a thread while its user does not use it: the broker sees heartbeats. An error that ends its
    connection meanwhile is raised by its next use.

    As a context its user uses it, except in :meth:`rest`; after :meth:`start` it does not, except in :meth:`use`.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self._in_use = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="amqp-heartbeats", daemon=True)

    def start(self) -> None:
        """Start to service the client."""
        if self.client.heartbeat_s:
            self._thread.start()

    def stop(self) -> None:
        """Stop to service it, once it is not in use."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        self._in_use.acquire()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._in_use.release()
        self.stop()

    @contextlib.contextmanager
    def rest(self) -> Iterator[None]:
        """Context in which the caller does not use the client: what arrives waits in the socket, not in memory."""
        self.client.pause_reading(True)
        self._in_use.release()
        try:
            yield
        finally:
            self._in_use.acquire()
            self.client.pause_reading(False)

    @contextlib.contextmanager
    def use(self) -> Iterator[Client]:
        """Context in which the caller uses the client."""
        with self._in_use:
            yield self.client

    def _run(self) -> None:
        while not self._over.wait(self.client.heartbeat_s / SERVICES_PER_HEARTBEAT):
            with self._in_use:
                if self._over.is_set():
                    return
                try:
                    self.client.service()
                except AmqpError:
                    return
