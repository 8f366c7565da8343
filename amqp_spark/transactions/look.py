"""Looking at a broker without taking anything: browsed messages, and whether a lock is held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from amqp_spark.errors import StateError
from amqp_spark.state.queue import EXCHANGE

if TYPE_CHECKING:
    from amqp_core.api import Client

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)

WAIT_SECONDS: Final = 1.0
"""How long a message is waited for that should be there: a writer holds it only while it commits a batch."""
_ROOM: Final = 64


class _Record(Protocol[S_co]):
    """A class of :mod:`amqp_spark.state.records`."""

    def load(self, body: bytes) -> S_co: ...


@dataclass(frozen=True, slots=True)
class Found(Generic[S]):
    """What a state queue shows to somebody who only looks.

    Attributes:
        queue: name of the state queue.
        exists: whether it is there.
        held: whether somebody holds the lock at this moment.
        state: what the message says; ``None`` when it cannot be seen or read.
        problem: why ``state`` is None, or what is wrong with it; empty when nothing is.
        body: of the message.
    """

    queue: str
    exists: bool
    held: bool
    state: S | None = None
    problem: str = ""
    body: bytes | None = None


def find(client: Client, queue: str, lock: str, record: _Record[S], *, begun: str | None = None) -> Found[S]:
    """Look at a state queue.

    Parameters:
        client: to look with.
        queue, lock: their names.
        record: what the message is read with.
        begun: the binding key that says that there once was a message; ``None``: not known.
    """
    held = client.query_queue(lock) is not None
    found = client.query_queue(queue)
    if found is None:
        return Found(queue, exists=False, held=held)
    bodies = browse(client, queue, wait=WAIT_SECONDS if found.message_count or held else 0.0)
    if bodies:
        extra = "" if len(bodies) == 1 or held else f"the queue holds {len(bodies)} messages, not one; "
        try:
            return Found(queue, True, held, record.load(bodies[-1]), extra.removesuffix("; "), bodies[-1])
        except StateError as error:
            return Found(queue, True, held, None, f"{extra}{error}", bodies[-1])
    if held:
        return Found(queue, True, held, None, "held by a live query, which shows it to nobody else")
    return Found(queue, True, held, None, _empty(client, found.message_count, begun))


def _empty(client: Client, count: int | None, begun: str | None) -> str:
    if count:
        return "a client that has no lock holds the message"
    if begun is None:
        return "the queue is empty"
    if not client.is_bound(EXCHANGE, begun):  # no other queue has that key
        return "the queue was made, and no state has been put into it yet"
    return "the queue has lost its message: it was purged, or a client took it"


def browse(client: Client, queue: str, *, wait: float = 0.0) -> list[bytes]:
    """Bodies of the messages of a queue, oldest first; nothing is acquired. Those that somebody holds are passed over.

    Parameters:
        client: to look with.
        queue: its name.
        wait: seconds to wait for the first one.
    """
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
