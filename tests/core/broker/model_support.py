"""A virtual host, messages and receivers for tests of the broker's model."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from amqp_core.broker.model.errors import Refused
from amqp_core.broker.model.messages import Message
from amqp_core.broker.model.virtual_host import VirtualHost

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from amqp_core.broker.model.errors import Refusal
    from amqp_core.broker.model.memory import Memory
    from amqp_core.broker.model.queues import Consumer, Entry

ME = "my connection"
OTHER = "another connection"


class FixedWire:
    """Messages whose headers are given."""

    def __init__(self, headers: Mapping[str, object] | None = None) -> None:
        self._headers = headers or {}

    def headers(self, message: Message) -> Mapping[str, object]:
        return self._headers


class Sink:
    """A receiver with room for ``room`` messages that notes what it gets."""

    def __init__(self, room: float = float("inf")) -> None:
        self.room = room
        self.got: list[Entry] = []
        self.bodies: list[str] = []
        self.was_cancelled = False

    def has_room(self, size: int) -> bool:
        return self.room >= 1

    def deliver(self, entry: Entry) -> None:
        assert self.room >= 1, "delivered without room"
        self.room -= 1
        self.got.append(entry)
        self.bodies += bodies([entry])

    def cancelled(self) -> None:
        self.was_cancelled = True


class Host(VirtualHost):
    """A virtual host with short ways to do what tests do."""

    def __init__(self, memory: Memory | None = None) -> None:
        super().__init__("test", memory)

    def make(self, name: str = "q", **arguments: object) -> str:
        """Declare a queue; ``x_max_length=1`` is argument ``x-max-length``."""
        self.declare_queue(name, owner=ME, arguments={key.replace("_", "-"): arguments[key] for key in arguments})
        return name

    def send(
        self,
        body: str = "",
        key: str = "q",
        exchange: str = "",
        *,
        now: float = 0.0,
        ttl_ms: int | None = None,
        priority: int = 0,
    ) -> tuple[int, bool]:
        published = self.publish(message(body, key, exchange, ttl_ms=ttl_ms, priority=priority), now=now)
        return published.queues, published.rejected

    def listen(
        self,
        sink: Sink,
        queue: str = "q",
        *,
        no_ack: bool = False,
        browse: bool = False,
        priority: int = 0,
        exclusive: bool = False,
    ) -> Consumer:
        consumer = self.consume(
            queue, sink, owner=ME, no_ack=no_ack, browse=browse, priority=priority, exclusive=exclusive
        )
        consumer.queue.ready()
        return consumer

    def waiting(self, queue: str = "q", now: float = 0.0) -> list[str]:
        """Bodies of what waits; it still waits afterwards."""
        entries = list(self.all_of(queue, now))
        self.release(entries, delivered=False)
        return bodies(entries)

    def all_of(self, queue: str = "q", now: float = 0.0) -> Iterator[Entry]:
        while (entry := self.get(queue, owner=ME, now=now)) is not None:
            yield entry


def message(
    body: str = "",
    key: str = "q",
    exchange: str = "",
    *,
    headers: Mapping[str, object] | None = None,
    ttl_ms: int | None = None,
    priority: int = 0,
) -> Message:
    return Message(FixedWire(headers), exchange, key, b"", body.encode(), ttl_ms=ttl_ms, priority=priority)


def bodies(entries: list[Entry]) -> list[str]:
    return [entry.message.body.decode() for entry in entries]


@contextmanager
def refused(reason: Refusal, *words: str) -> Generator[None, None, None]:
    """A context in which the model must refuse for this reason, with all the words in its text."""
    with pytest.raises(Refused) as caught:
        yield
    assert caught.value.reason is reason
    assert all(word in str(caught.value) for word in words), caught.value
