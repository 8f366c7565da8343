"""Notice that a quorum queue has taken messages back from a session that lives.

RabbitMQ gives the messages of a consumer back to their queue when the node of the consumer loses its link to the leader
of the queue, and delivers them again, to the same consumer, when the link is there again; 4.3 also after
consumer_timeout. Connection and channel notice nothing, and acknowledgements of the earlier deliveries are ignored
without a word. Only the deliveries show it: those that come again are marked as redelivered, in the order in which they
came first. Messages are acknowledged in batches, in order. So the first that comes again is the first of a batch, or of
the messages that wait: their *heads*, of two messages each.

Another message with the mark proves nothing: a session that has ended held it, or a barrier has met it. The first
message of a head does so if it has a message id; else the second one must follow it, and be another one: equal readings
of a sensor must not be taken for one message. A publisher may have sent one message twice, with its id. So a message
shows it a few times in the life of the process, with more deliveries each time: else sessions might be replaced for
ever.

Pure decisions, without I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from amqp_core.api import Identity

    Head = Sequence[Identity | None]
    """The first messages of a batch, or of those that wait."""

HEAD: Final = 2
"""So many messages are a head."""
MOST_REMEMBERED: Final = 1000
"""So many messages are remembered that have shown it."""
MOST_SHOWN: Final = 5
"""So often one message may show it."""


class _Shown(NamedTuple):
    """How often a message has shown it, and with how many earlier deliveries at last."""

    times: int
    deliveries: int


class ReturnWatch:
    """Looks at the messages of one queue that are marked as redelivered, in the order in which they arrive."""

    def __init__(self) -> None:
        self._before: Identity | None = None
        self._shown: dict[bytes, _Shown] = {}

    def restart(self) -> None:
        """Begin a session."""
        self._before = None

    def shows(self, redelivered: Iterable[Identity | None], heads: Sequence[Head]) -> bool:
        """Whether messages that have arrived, marked as redelivered, show that those with these heads come again."""
        found = False
        for each in redelivered:
            if each is not None and self._may_show(each) and any(self._is_head(head, each) for head in heads):
                found = True
                before = self._shown.get(each.digest, _Shown(0, 0))
                self._shown[each.digest] = _Shown(before.times + 1, each.deliveries)
            self._before = each
        while len(self._shown) > MOST_REMEMBERED:
            del self._shown[next(iter(self._shown))]
        return found

    def _may_show(self, identity: Identity) -> bool:
        shown = self._shown.get(identity.digest)
        return shown is None or (shown.times < MOST_SHOWN and identity.deliveries > shown.deliveries)

    def _is_head(self, head: Head, identity: Identity) -> bool:
        first, second = (*head, None, None)[:HEAD]
        if first is None:
            return False
        if first.named:
            return _comes_again(first, identity)
        if second is None or first.digest == second.digest:
            return False
        return _comes_again(first, self._before) and _comes_again(second, identity)


def _comes_again(held: Identity, arrived: Identity | None) -> bool:
    return arrived is not None and held.digest == arrived.digest and arrived.deliveries > held.deliveries
