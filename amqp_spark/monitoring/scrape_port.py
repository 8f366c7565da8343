"""The port that Prometheus scrapes. ``prometheus_client`` (extra ``metrics``) is imported when it is needed.

Its own server has a thread for each connection and waits for ever, so that connections that say nothing would keep
threads; this one gives them up.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

SILENT_SECONDS: Final = 30.0
"""A connection that sends or takes nothing for so long is closed."""


class ScrapePort(ThreadingMixIn, WSGIServer):
    """Serves the metrics of a registry from a thread of its own, until it is closed.

    Args:
        port: 0: one that is free.
        address: to listen on, of IPv4 or IPv6, or its name.
        registry: whose metrics are served.

    Raises:
        OSError: the port is in use, or there is no such address.
    """

    daemon_threads = True

    def __init__(self, port: int, address: str, registry: CollectorRegistry) -> None:
        from prometheus_client import make_wsgi_app  # noqa: PLC0415 - the extra metrics

        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        super().__init__((str(found[0][4][0]), port), _Handler)
        self.set_app(make_wsgi_app(registry))
        threading.Thread(target=self.serve_forever, name="amqp-metrics-port", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self.shutdown()
        self.server_close()


class _Handler(WSGIRequestHandler):
    timeout = SILENT_SECONDS

    def handle(self) -> None:
        """Serve one request. A client that is silent or gone is no error, which would be printed."""
        with suppress(OSError):
            super().handle()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that it has there
        """Log nothing: a scrape every few seconds is no news."""
