"""Names of the queues that exactly-once needs on the broker."""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import dataclass
from typing import Final

CONSUMER: Final = "consumer"
"""Kind of an identity: option ``consumerId``."""
WRITER: Final = "writer"
"""Kind of an identity: option ``transactionalId``."""
HASH_CHARACTERS: Final = 24
"""Of a hash in names and xids: 96 bits."""


def hashed(*parts: str) -> str:
    """A short text that stands for some long ones; safe in every name."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:HASH_CHARACTERS]


def state_queue(digest: str) -> str:
    """Name of a state queue; the digest is that of :class:`Names`, which branches of a writer have in their xids."""
    return f"amqp-spark.state.{digest}"


def lock_queue(digest: str) -> str:
    """Name of the queue that is the lock."""
    return f"amqp-spark.lock.{digest}"


@dataclass(frozen=True, slots=True)
class Names:
    """The queues of one identity.

    Parameters:
        kind: ``CONSUMER`` or ``WRITER``.
        identity: the value of the option.
        index: a consumer of several queues has a state for each: its place among them, sorted by name.
    """

    kind: str
    identity: str
    index: int = 0

    @property
    def state(self) -> str:
        """The durable queue that holds the state message."""
        return state_queue(self._hash)

    @property
    def lock(self) -> str:
        """The exclusive queue that is the lock; it is there as long as somebody holds it."""
        return lock_queue(self._hash)

    @property
    def markers(self) -> str:
        """The durable queue of the markers of a writer: each one says that its branch is committed."""
        return f"amqp-spark.markers.{self._hash}"

    @property
    def begun(self) -> str:
        """Binding key at ``amq.direct`` that says: a state was once put into the state queue."""
        return f"amqp-spark.begun.{self._hash}"

    @property
    def kept(self) -> str:
        """Binding key at ``amq.direct`` of the queue of markers: it is there since the state began, both undeleted."""
        return f"amqp-spark.kept.{self._hash}"

    def tool(self, action: str = "") -> str:
        """The command that shows what is kept, or does something about it: for the text of errors."""
        option = "--consumer-id" if self.kind == CONSUMER else "--transactional-id"
        identity = shlex.quote(self.identity) if self.identity.isprintable() else "ID"
        return f"`python -m amqp_spark.transactions URL {option} {identity}{f' {action}' if action else ''}`"

    @property
    def _hash(self) -> str:
        text = hashed(self.kind, self.identity)
        return f"{text}.{self.index}" if self.index else text


def lineage_key(lineage: str) -> str:
    """Binding key at ``amq.direct`` that says which state queue a lineage belongs to."""
    return f"amqp-spark.lineage.{hashed(lineage)}"
