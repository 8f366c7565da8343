"""Keep the heartbeats of an unused client going, so that the broker does not take it for dead."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Final, Self

from amqp_core.errors import AmqpError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqp_core.api import Client

SERVICES_PER_HEARTBEAT: Final = 4


class Resting:
    """A context manager that services a client on a thread while its user does not use it (:meth:`rest`).

    Args:
        client: used by one thread at a time. An error that ends its connection meanwhile is raised by its next use.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._in_use = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="amqp-browse-heartbeats", daemon=True)

    def __enter__(self) -> Self:
        self._in_use.acquire()
        if self._client.heartbeat_s:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._in_use.release()
        if self._thread.ident is not None:
            self._thread.join()

    @contextlib.contextmanager
    def rest(self) -> Iterator[None]:
        """Context in which the caller does not use the client."""
        self._in_use.release()
        try:
            yield
        finally:
            self._in_use.acquire()

    def _run(self) -> None:
        while not self._over.wait(self._client.heartbeat_s / SERVICES_PER_HEARTBEAT):
            with self._in_use:
                if self._over.is_set():
                    return
                try:
                    self._client.service()
                except AmqpError:
                    return
