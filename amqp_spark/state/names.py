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
SPARE_LOCKS: Final = 2
"""So many nodes of a cluster may be down, each with a lock of the same reader."""
HASH_CHARACTERS: Final = 24
"""Characters of a hash in names and xids: 96 bits."""


def hashed(*parts: str) -> str:
    """A short hash of one or more long texts; safe in every name."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:HASH_CHARACTERS]


def state_queue(digest: str) -> str:
    """Name of a state queue; ``digest`` is that of :class:`Names`, which is also in the xids of a writer's branches."""
    return f"amqp-spark.state.{digest}"


def lock_queue(digest: str) -> str:
    """Name of the queue that serves as the lock."""
    return f"amqp-spark.lock.{digest}"


@dataclass(frozen=True, slots=True)
class Names:
    """The queue names of one identity of a kind (``CONSUMER``, ``WRITER``). ``index``: position of the queue among the
    consumer's queues, sorted by name: each queue has its own state."""

    kind: str
    identity: str
    index: int = 0

    @property
    def state(self) -> str:
        """The durable queue that holds the state message."""
        return state_queue(self._hash)

    @property
    def lock(self) -> str:
        """The exclusive queue that serves as the lock; it exists as long as a session holds it."""
        return lock_queue(self._hash)

    @property
    def locks(self) -> tuple[str, ...]:
        """This lock, and those that take its place where it cannot be released (:mod:`.quorum_state`)."""
        return (self.lock, *(f"{self.lock}.spare{number}" for number in range(1, SPARE_LOCKS + 1)))

    def anchor(self, token: str) -> str:
        """Name of an exchange that shows which broker a state in a spool belongs to (:mod:`.quorum_state`). It begins
        as the locks do: so the rights of a login for these are enough."""
        return f"{self.lock}.anchor-{token}"

    @property
    def markers(self) -> str:
        """The durable marker queue of a writer: each marker proves that its branch is committed."""
        return f"amqp-spark.markers.{self._hash}"

    @property
    def begun(self) -> str:
        """Binding key at ``amq.direct`` that marks that the state queue once contained a state."""
        return f"amqp-spark.begun.{self._hash}"

    @property
    def kept(self) -> str:
        """Binding key at ``amq.direct``: while bound, the marker queue has not been deleted since the state began."""
        return f"amqp-spark.kept.{self._hash}"

    @property
    def owner(self) -> str:
        """Kind and identity, for the text of errors."""
        return f"{self.kind} {self.identity!r}"

    def tool(self, action: str = "") -> str:
        """The command that shows or repairs the state, for the text of errors."""
        option = "--consumer-id" if self.kind == CONSUMER else "--transactional-id"
        identity = shlex.quote(self.identity) if self.identity.isprintable() else "ID"
        return f"`amqp-spark transactions URL {option} {identity}{f' {action}' if action else ''}`"

    @property
    def _hash(self) -> str:
        text = hashed(self.kind, self.identity)
        return f"{text}.{self.index}" if self.index else text


def query_key(query_id: str) -> str:
    """Binding key at ``amq.direct`` that identifies the state queue of a query id."""
    return f"amqp-spark.lineage.{hashed(query_id)}"
