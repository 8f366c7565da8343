"""The embedded broker in a thread of the user's own process."""

from __future__ import annotations

import asyncio
import threading
import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from amqp_core.broker.logins import DEFAULT_LOGIN
from amqp_core.broker.server import HOST, MOST_CONNECTIONS
from amqp_core.broker.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from amqp_core.broker.store.database import StoreError

START_SECONDS = 30.0


class Broker:
    """A broker that runs in a thread of this process; made by :func:`running`. Any thread may use it.

    Attributes:
        username, password: of its login; empty if it has a file of users.
        port: its port.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings = settings or Settings()
        self.username, self.password = DEFAULT_LOGIN if settings.users is None else ("", "")
        self.port = settings.port
        self._tls = settings.tls()
        self._server = settings.server()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="amqp broker", daemon=True)
        self._started = threading.Event()
        self._stopped = asyncio.Event()
        """That it is to stop; for the thread of the loop alone."""
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        return f"<broker at {self.url}>"

    @property
    def url(self) -> str:
        """URL of the virtual host ``/``, without credentials."""
        return self.url_of("/")

    def url_of(self, virtual_host: str) -> str:
        """URL of a virtual host, without credentials."""
        return self._settings.url(self.port, virtual_host)

    def add_virtual_host(self, name: str | None = None) -> str:
        """Make a virtual host if there is none with this name; ``None``: one with a new name. Return its name."""
        name = uuid.uuid4().hex if name is None else name
        if self._loop.is_running():  # everything of the server belongs to the thread of the loop
            asyncio.run_coroutine_threadsafe(self._add_host(name), self._loop).result(START_SECONDS)
        else:
            self._server.add_host(name)
        return name

    @property
    def failure(self) -> StoreError | None:
        """Why the broker has stopped by itself: its store cannot be written any more."""
        return self._server.failure

    def start(self) -> None:
        """Start to listen.

        Raises:
            OSError: the port is in use.
            StoreError: the store cannot be written.
        """
        self._thread.start()
        if not self._started.wait(START_SECONDS):
            raise TimeoutError(f"the broker did not start within {START_SECONDS:g} s")
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End all connections, and stop. What is in memory alone is gone."""
        if self._thread.is_alive():
            with suppress(RuntimeError):  # it has stopped by itself: its loop is closed
                self._loop.call_soon_threadsafe(self._stopped.set)
            self._thread.join()

    async def _add_host(self, name: str) -> None:
        self._server.add_host(name)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            started = self._server.start(
                self.port, on_failure=self._stopped.set, host=self._settings.host, tls=self._tls
            )
            self.port = self._loop.run_until_complete(started)
        except Exception as error:  # noqa: BLE001 - the thread that starts the broker raises it
            self._error = error
            self._loop.run_until_complete(self._server.stop())  # it gives the store free
            self._loop.close()
            return
        finally:
            self._started.set()
        try:
            self._loop.run_until_complete(self._stopped.wait())
        finally:
            self._loop.run_until_complete(self._server.stop())
            self._loop.close()


@contextmanager
def running(
    port: int = 0,
    store: str | Path | None = None,
    *,
    host: str = HOST,
    users: str | Path | None = None,
    tls_cert: str | Path | None = None,
    tls_key: str | Path | None = None,
    tls_ca: str | Path | None = None,
    allow_anonymous: bool = False,
    memory_limit: int | None = None,
    max_connections: int = MOST_CONNECTIONS,
) -> Iterator[Broker]:
    """Run a broker while the context lasts: ``with running() as broker: connect(broker.url)``.

    Args:
        port: 0: a free one.
        store: SQLite file that keeps what is durable; None: everything is in memory.
        host: the address to listen on. The default login may come from this machine only, wherever that is.
        users: file of the users, made with ``python -m amqp_core.broker user``; None: the default login.
        tls_cert, tls_key: PEM files: clients have to use TLS.
        tls_ca: PEM file of the authorities of client certificates, which may be used for a login.
        allow_anonymous: clients of other machines may log in without a name, too.
        memory_limit: bytes of messages above which publishers are stopped; None: 40 % of the machine's memory.
        max_connections: connections that may be open at a time.

    Raises:
        OSError: the port is in use.
        StoreError: the store cannot be used; at the end of the context: it could not be written any more.
        UnusableFile: the users, or a file for TLS, cannot be used.
        UsageError: one of the files for TLS is missing, ``host`` is no address, or ``port`` no port.
    """
    settings = Settings(
        port, store, host, users, tls_cert, tls_key, tls_ca, allow_anonymous, memory_limit, max_connections
    )
    broker = Broker(settings)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()
    if broker.failure is not None:
        raise broker.failure
