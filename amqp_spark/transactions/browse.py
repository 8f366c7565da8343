"""Read a broker without acquiring messages: browsed messages, and whether a lock is held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from amqp_spark.state.queue import EXCHANGE
from amqp_spark.state.records import RecordUnreadable

if TYPE_CHECKING:
    from amqp_core.api import Client

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)

WAIT_SECONDS: Final = 1.0
"""Seconds to wait for a message that should exist: a writer holds it only while it commits a batch."""
_ROOM: Final = 64


class _Record(Protocol[S_co]):
    """A class of :mod:`amqp_spark.state.records`."""

    def load(self, body: bytes) -> S_co: ...


@dataclass(frozen=True, slots=True)
class Found(Generic[S]):
    """Contents of a state queue as seen by a browser. ``held``: a session holds the lock at this moment; ``state``: the
    parsed message, ``None`` if it cannot be seen or read; ``problem``: why, or another defect."""

    queue: str
    exists: bool
    held: bool
    state: S | None = None
    problem: str = ""
    body: bytes | None = None


def find(client: Client, queue: str, lock: str, record: _Record[S], *, begun: str | None = None) -> Found[S]:
    """Browse a state queue; ``record`` is the class that parses the message. ``begun``: the binding key that marks that
    a message once existed; ``None``: not known."""
    held = client.query_queue(lock) is not None
    found = client.query_queue(queue)
    if found is None:
        return Found(queue, exists=False, held=held)
    bodies = browse(client, queue, wait=WAIT_SECONDS if found.message_count or held else 0.0)
    if bodies:
        extra = "" if len(bodies) == 1 or held else f"the queue holds {len(bodies)} messages, not one; "
        try:
            return Found(queue, True, held, record.load(bodies[-1]), extra.removesuffix("; "), bodies[-1])
        except RecordUnreadable as error:
            return Found(queue, True, held, None, f"{extra}{error}", bodies[-1])
    if held:
        return Found(queue, True, held, None, "held by a live query, so that it cannot be seen")
    return Found(queue, True, held, None, _empty(client, found.message_count, begun))


def _empty(client: Client, count: int | None, begun: str | None) -> str:
    if count:
        return "another client holds the message without the lock"
    if begun is None:
        return "the queue is empty"
    if not client.is_bound(EXCHANGE, begun):  # no other queue has that key
        return "the queue is new and has no state yet"
    return "the queue has lost its message: it was purged, or a client took it"


def browse(client: Client, queue: str, *, wait: float = 0.0) -> list[bytes]:
    """Bodies of the messages of a queue, oldest first, without acquiring them; acquired ones are passed over. ``wait``:
    seconds to wait for the first one."""
    subscription = client.subscribe(queue, accept=False, acquire=False)
    bodies: list[bytes] = []
    if wait:
        subscription.grant(1)
        first = subscription.take_one(timeout=wait)
        bodies += [] if first is None else [first.body]
    while True:
        subscription.grant(_ROOM)
        subscription.flush()
        before = len(bodies)
        while (message := subscription.take_one(timeout=0.0)) is not None:
            bodies.append(message.body)
        if len(bodies) == before:
            break
    subscription.cancel()
    return bodies
