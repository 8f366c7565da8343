"""Flow control of one queue, by credit or by a limit of unsettled messages; the protocol decides which one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqp_core.api import Block, Client, Subscription


class FlowControl(Protocol):
    """Keeps what a consumer holds within the budget that all queues of a query share. For the thread of the consumer.

    Attributes:
        paused: the socket is not read, since the budget is used up.
    """

    paused: bool

    def most_unsettled(self) -> int | None:
        """The limit of unsettled messages for the next subscription; None: it has credit."""

    def restart(self) -> None:
        """Reset for a new session, which has subscribed."""

    def arrived(self, block: Block) -> None:
        """Record the message sizes of a block."""

    def announce(self, subscription: Subscription) -> None:
        """Reserve budget: the thread is about to wait for an answer of the broker and takes all transfers before it."""

    def take_timeout(self) -> float:
        """Seconds to wait for transfers before :meth:`regulate`."""

    def regulate(self, client: Client, subscription: Subscription, *, left: int, idles: bool) -> None:
        """Let the broker send what the budget has room for, and stop reading the socket while it has none.

        ``left``: messages that are still wanted; ``idles``: whether a queue that receives nothing is given room for a
        message larger than its share.
        """

    def probe(self, subscription: Subscription) -> Sequence[Block] | None:
        """Return what the queue still has for this consumer, as far as there is room; None if there is no answer now.
        The caller stores it, then calls :meth:`leave_turn`."""

    def leave_turn(self) -> None:
        """Let other queues have what this one has reserved."""
