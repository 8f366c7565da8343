"""A relay on loopback that limits the bytes per second from the broker: a slow link with a small buffer."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Self

_CHUNK = 1 << 16


class SlowLink:
    """Relays connections to ``target``; bytes from the broker pass at ``rate`` bytes per second.

    It holds one chunk of 64 KiB and asks for small socket buffers, so that the backlog stays at the broker.
    """

    def __init__(self, target: tuple[str, int], rate: float) -> None:
        self._target = target
        self._rate = rate
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            broker = socket.create_connection(self._target)
            broker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _CHUNK)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _CHUNK)
            self._sockets += [client, broker]
            threading.Thread(target=self._relay, args=(client, broker, None), daemon=True).start()
            threading.Thread(target=self._relay, args=(broker, client, self._rate), daemon=True).start()

    def _relay(self, source: socket.socket, to: socket.socket, rate: float | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                to.sendall(data)
                if rate is not None:
                    time.sleep(len(data) / rate)
        for each in (source, to):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
