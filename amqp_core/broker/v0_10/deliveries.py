"""Transfers that were sent on a session, by command id: what is held, what was browsed, what fills a window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqp_core.broker.model.entries import GONE
from amqp_core.broker.v0_10.transfer_ids import ids_among, take_among

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from amqp_core.broker.model.entries import Entry
    from amqp_core.broker.v0_10.subscription import SessionSubscription

MOST_BROWSED: Final = 1 << 16
"""Browsed transfers of a session that may be acquired; twice as many are remembered at most. A client that does not
want to acquire need not say so, and may browse the same messages again and again."""
_FEW: Final = 1000


class Deliveries:
    """Not thread-safe. ``Taken`` are pairs of command id and entry."""

    def __init__(self) -> None:
        self.held: dict[int, Entry] = {}
        """Acquired and not settled, in the order of their ids unless some came back."""
        self._browsed: dict[int, tuple[Entry, SessionSubscription]] = {}
        self._window: dict[int, tuple[SessionSubscription, int]] = {}
        self._prune_at = _FEW

    def add(self, command_id: int, entry: Entry, subscription: SessionSubscription, size: int) -> None:
        """A transfer is sent, with so many bytes of header and body; its credit is not taken off yet.

        What it gives back is what it takes: a header that has become longer for its consumer may exceed the credit.
        """
        if subscription.window and not subscription.is_unlimited:  # such a client may never say what is complete
            self._window[command_id] = subscription, int(min(size, subscription.nbytes))
        if not subscription.browse:
            if not subscription.no_ack:
                self.held[command_id] = entry
            return
        self._browsed[command_id] = entry, subscription
        if len(self._browsed) >= self._prune_at:
            waiting = [(each, seen) for each, seen in self._browsed.items() if seen[0].state != GONE]
            self._browsed = dict(waiting[-MOST_BROWSED:])
            self._prune_at = 2 * len(self._browsed) + _FEW

    def take(self, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, Entry]]:
        """Remove and return what is held; what was browsed is forgotten, and other ids are passed over."""
        ranges = list(ranges)
        if self._browsed:
            take_among(self._browsed, ranges)
        return take_among(self.held, ranges)

    def put_back(self, taken: Iterable[tuple[int, Entry]]) -> None:
        """Hold again what was taken."""
        self.held.update(taken)

    def browsed(self, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, Entry]]:
        """What was browsed and may be acquired."""
        return [(each, self._browsed[each][0]) for each in ids_among(self._browsed, ranges)]

    def acquired(self, taken: Sequence[tuple[int, Entry]]) -> list[Entry]:
        """Hold browsed messages that are acquired; return those of accept-mode none, which the caller settles."""
        done = []
        for command_id, entry in taken:
            _, subscription = self._browsed.pop(command_id)
            if subscription.no_ack:
                done.append(entry)
            else:
                self.held[command_id] = entry
        return done

    def forget_browsed(self, subscription: SessionSubscription) -> None:
        """A subscription is over: with accept-mode none its client does not say when it needs a message no more."""
        if subscription.browse and subscription.no_ack:
            self._browsed = {each: seen for each, seen in self._browsed.items() if seen[1] is not subscription}

    def completed(self, ranges: Iterable[tuple[int, int]]) -> list[tuple[SessionSubscription, int]]:
        """Subscriptions and sizes of the transfers of a window that are complete now."""
        return [each for _, each in take_among(self._window, ranges)] if self._window else []

    def forget_window(self, subscription: SessionSubscription) -> None:
        """The transfers of a subscription give no credit back any more."""
        if self._window:
            self._window = {each: sent for each, sent in self._window.items() if sent[0] is not subscription}

    def clear(self) -> list[Entry]:
        """Forget all; return what was held."""
        held = list(self.held.values())
        self.held.clear()
        self._browsed.clear()
        self._window.clear()
        return held
