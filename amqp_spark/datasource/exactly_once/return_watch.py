"""Notice that a quorum queue has taken messages back from a session that lives.

RabbitMQ gives the messages of a consumer back to their queue when the node of the consumer loses its link to the leader
of the queue, and delivers them again, to the same consumer, when the link is there again; 4.3 also after
consumer_timeout. Connection and channel notice nothing, and acknowledgements of the earlier deliveries are ignored
without a word. Only the deliveries show it. A queue delivers what was returned before anything else. So of a session

- the first messages may be marked as redelivered: earlier sessions held them. Each of them comes once;
- no other one is, once one has come that is not marked, but those that the session itself has returned.

Pure decisions, without I/O. The session is the only consumer of the queue: what others receive and return looks as if
it was taken back, which costs another session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from amqp_core.api import Identity, Ready

MOST_CAUSES: Final = 1000
"""So many messages are remembered for which a session was replaced."""


class ReturnWatch:
    """Looks at the messages of one queue in the order in which they arrive."""

    def __init__(self) -> None:
        self._causes: dict[bytes, None] = {}
        """Messages for which a session was replaced: not again for the same ones, or it might go on for ever."""
        self.restart()

    def restart(self) -> None:
        """Begin a session."""
        self._is_past = False
        """Whether everything that earlier sessions held has come: a message has that was never delivered before."""
        self._first: dict[bytes, int] = {}
        """Digests of the messages until then, where these have a message id, with their deliveries."""
        self._own: set[bytes] = set()
        """Messages that the session has returned, and that have not come since."""

    def past(self) -> None:
        """Take note that everything has come that was delivered before this session."""
        self._is_past = True

    def returned(self, ready: Ready | None) -> bytes | None:
        """Take the message that a barrier has met and returned; return its digest if it was taken back before."""
        if ready is None or ready.identity is None:
            return None
        digest = ready.identity.digest
        is_strange = ready.redelivered and self._is_past and digest not in self._own
        self._own.add(digest)
        return self._strange(digest) if is_strange else None

    def arrived(self, count: int, flagged: Sequence[int], identities: Iterable[Identity | None]) -> bytes | None:
        """Take ``count`` messages that have arrived, of which those at the indices ``flagged`` are marked as
        redelivered, and have these identities; return the digest of one that was taken back, if there is any."""
        first_fresh = next((index for index, each in enumerate(flagged) if index != each), len(flagged))
        found = None
        for index, identity in zip(flagged, identities, strict=True):
            if identity is not None and self._is_strange(identity, past=self._is_past or index > first_fresh):
                found = found or self._strange(identity.digest)
        self._is_past = self._is_past or first_fresh < count
        return found

    def replaced_for(self, digest: bytes) -> None:
        """Take note that the session is replaced for this message."""
        self._causes[digest] = None
        if len(self._causes) > MOST_CAUSES:
            del self._causes[next(iter(self._causes))]

    def _is_strange(self, identity: Identity, *, past: bool) -> bool:
        digest = identity.digest
        if digest in self._own:
            self._own.discard(digest)
            return False
        if past:
            return True
        if not identity.named:  # another one may be equal
            return False
        before = self._first.get(digest)
        self._first[digest] = identity.deliveries
        return before is not None and identity.deliveries > before

    def _strange(self, digest: bytes) -> bytes | None:
        return None if digest in self._causes else digest
