"""Flow control of one queue, by credit or by a limit of unsettled messages; the protocol decides which one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from amqp_core.api import Block, Client, Subscription


class Room(NamedTuple):
    """What one consumer may hold by itself: messages (None: any number) and bytes."""

    messages: int | None
    nbytes: int


class FlowControl(Protocol):
    """Keeps what a consumer holds within the budget that all queues of a query share. For the thread of the consumer.

    Attributes:
        paused: the socket is not read, since the budget is used up.
        most: the present limit of unsettled messages; None: there is none.
    """

    paused: bool
    most: int | None

    def expect(self, count: int, nbytes: int) -> None:
        """Take the number and the bytes of messages that another process has received. They say what the next ones are
        like, until some have been seen, where the first limit cannot be a small one."""

    def most_unsettled(self, at_most: int | None = None, *, looks: bool = True) -> int | None:
        """Choose the limit of unsettled messages for the next subscription, at most ``at_most``; None: none. ``looks``:
        it may be a small one until sizes are known."""

    def may_raise_limit(self) -> bool:
        """Whether a higher limit may follow on the same channel: the present one was chosen before sizes were known, or
        was made smaller for a reason that was long ago."""

    def before_session(self, is_asked: Callable[[], bool]) -> None:
        """Wait before the connection is made, if what comes first would have to wait for long; not while ``is_asked``
        returns true, called under the lock: others wait for what the session has to do."""

    def restart(self) -> None:
        """Reset for a new session, which has subscribed."""

    def end(self) -> None:
        """Record the end of the session."""

    def arrived(self, block: Block) -> None:
        """Record the message sizes of a block."""

    def announce(self, subscription: Subscription) -> None:
        """Reserve budget: the thread is about to wait for an answer of the broker and takes all transfers before it."""

    def may_begin_anew(self) -> bool:
        """Whether there is room for what the subscription has dropped: it comes again in the next session."""

    def take_timeout(self) -> float:
        """Seconds to wait for transfers before :meth:`regulate`."""

    def regulate(self, client: Client, subscription: Subscription, *, left: int, idles: bool) -> None:
        """Let the broker send what the budget has room for, and stop reading the socket while it has none.

        ``left``: messages that are still wanted, 0 if those that arrive are not kept; ``idles``: whether a queue that
        receives nothing is given room for a message larger than its share.
        """

    def has_room(self) -> bool:
        """Whether messages can arrive now."""

    def probe(self, subscription: Subscription) -> Sequence[Block] | None:
        """Return what the queue still has for this consumer, as far as there is room; None if there is no answer now.
        The caller stores it, then calls :meth:`leave_turn`."""

    def leave_turn(self) -> None:
        """Let other queues have what this one has reserved."""
