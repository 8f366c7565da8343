"""Shared code of the tests of the publisher: a peer that collects what it receives, and its answers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from amqp_core.v0_10 import spec

if TYPE_CHECKING:
    from tests.support.fakepeer import Peer


def completed(*ranges: tuple[int, int]) -> spec.SessionCompleted:
    return spec.SessionCompleted(commands=list(ranges))


class Receiver:
    """Collects what a script's peer receives, and acts on it."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.events: list[str] = []
        self.done = threading.Event()

    def __call__(self, peer: Peer) -> None:
        peer.open()
        self.watch(peer)
        peer.serve()
        self.done.set()

    def watch(self, peer: Peer) -> None:
        peer.watch = self.take

    def take(self, command: spec.Command, body: bytes | None) -> None:
        if isinstance(command, spec.MessageTransfer):
            self.bodies.append(body or b"")
        self.events.append(command.NAME)
