"""A TCP proxy that records all bytes."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import dataclass, field
from typing import Self

from amqp_core.v0_10.framing import LAST_FRAME, PROTOCOL_HEADER, parse_frame

HOST = "127.0.0.1"


@dataclass
class Recording:
    """Bytes of both directions of one connection."""

    to_broker: bytearray = field(default_factory=bytearray)
    to_client: bytearray = field(default_factory=bytearray)


class Recorder:
    """Listens on :attr:`port` and passes every connection on to ``target_port``; both on the loopback interface."""

    def __init__(self, target_port: int) -> None:
        self.recordings: list[Recording] = []
        self._target = target_port
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *exc: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _start(self, function: object, *arguments: object) -> None:
        thread = threading.Thread(target=function, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                client, _ = self._listener.accept()
                broker = socket.create_connection((HOST, self._target))
                recording = Recording()
                self.recordings.append(recording)
                self._start(self._pass_on, client, broker, recording.to_broker)
                self._start(self._pass_on, broker, client, recording.to_client)

    @staticmethod
    def _pass_on(source: socket.socket, target: socket.socket, kept: bytearray) -> None:
        with contextlib.suppress(OSError):  # one side went away
            while data := source.recv(65536):
                kept += data
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


def segments_of(stream: bytes) -> list[tuple[int, list[bytes]]]:
    """Segment type and frames (with their headers) of every complete segment of one direction."""
    pos = len(PROTOCOL_HEADER) if stream.startswith(b"AMQP") else 0
    open_segments: dict[tuple[int, int], list[bytes]] = {}
    out: list[tuple[int, list[bytes]]] = []
    while (parsed := parse_frame(stream, pos, 65535)) is not None:
        frame, end = parsed
        frames = open_segments.setdefault((frame.channel, frame.track), [])
        frames.append(stream[pos:end])
        if frame.flags & LAST_FRAME:
            out.append((frame.type, open_segments.pop((frame.channel, frame.track))))
        pos = end
    return out
