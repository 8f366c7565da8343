"""The broker that a campaign works on, without sockets: virtual host, logins, session names, time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from amqp_core.broker.logins import Logins
from amqp_core.broker.model.virtual_host import VirtualHost
from amqp_core.broker.v0_10.names import SessionNames

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

    from amqp_core.broker.adapter import Adapter
    from tests.box.fuzz.mutating import Script

STEP_S = 100.0
"""Time that passes after each input: the messages and queues of most have expired then."""


class Place:
    """What all connections share.

    Args:
        host: None: a new one, in memory.
    """

    def __init__(self, host: VirtualHost | None = None, now: float = 1_000_000.0) -> None:
        self.host = VirtualHost("/") if host is None else host
        self.hosts = {"/": self.host}
        self.logins = Logins()
        self.names = SessionNames()
        self.time = now

    def now(self) -> float:
        """The time of the model."""
        return self.time

    def pass_time(self) -> None:
        """Let what is due expire."""
        self.time += STEP_S
        self.host.expire(self.time)

    def tidy(self, kept: Iterable[str]) -> None:
        """Remove all queues and exchanges but these and those of the broker itself."""
        for name in set(self.host.queues) - set(kept):
            if name in self.host.queues:  # another may have taken it along
                self.host.delete_queue(name, owner=self.host.queues[name].exclusive)
        for name in list(self.host.exchanges):
            if name and not name.startswith("amq.") and name in self.host.exchanges:
                self.host.delete_exchange(name)


class Witness(Protocol):
    """A client that has nothing to do with the input: it publishes and consumes right through the campaign."""

    @property
    def queue(self) -> str:
        """The queue that it consumes."""

    def publish(self, queue: str, body: bytes) -> None:
        """Publish to a queue, with a confirm."""

    def check(self, body: bytes) -> str:
        """What is wrong, if not just this message has come and the publish was confirmed; else nothing."""


class Side(Protocol):
    """One protocol."""

    @property
    def name(self) -> str:
        """The protocol."""

    def script(self, chance: Random) -> Script:
        """A session that is right."""

    def connect(self, place: Place) -> Adapter:
        """A new connection to the broker."""

    def witness(self, place: Place) -> Witness:
        """A client that is logged in, and subscribed to its own queue."""

    def errors(self, answer: bytes) -> list[str]:
        """The errors in what the broker has sent to one client.

        Raises:
            AssertionError: the broker has sent what no client understands, or an error that is not documented.
        """
