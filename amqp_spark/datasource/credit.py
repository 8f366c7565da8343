"""Flow control of one queue: credit within the budget that all queues of a query share, and pausing the socket.

Runs on the thread of the queue's consumer. The bound in bytes is the effective one: it is granted as credit, too.
Credit in messages follows the largest recent message and starts small, for brokers that count only a part of a
transfer, or no bytes at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqp_spark.datasource.drain_detector import QUIET_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from amqp_core.api import Block, Client, Subscription
    from amqp_spark.datasource.receive_buffer import ReceiveBuffer

MAX_CREDIT: Final = 16_384
"""Most transfers under way: a broker that counts uncompleted commands stops at 65,536 (Broker-J halts there)."""
FIRST_CREDIT: Final = 16
"""Initial credit of a session, in messages; it doubles each time as many messages have arrived."""
FIRST_GUESS_BYTES: Final = 16_384
"""Assumed size of a transfer before the first one arrives."""
UNDER_WAY_BYTES: Final = 8 << 20
"""Bytes by which expected transfers may exceed the free part of the budget before the credit is revoked."""
SLACK_BYTES: Final = 16 << 20
"""Bytes by which the buffer may exceed the budget, plus one message."""
HEADER_BYTES: Final = 8192
"""Room for the headers of each message under way: Broker-J counts only bodies against credit in bytes."""
IDLE_SECONDS: Final = 5.0
"""Longest wait for transfers; commands of other threads end the wait. Credit that brought nothing is replaced then:
Broker-J sometimes stops serving one of several competing consumers for good, although there are messages."""
TURN_SECONDS: Final = 0.1
"""How long a queue that receives nothing keeps its turn while others wait for one."""
RETURN_SECONDS: Final = 1.0
"""How long such a queue then leaves turns to others, unless it is known to need one."""


class CreditWindow:
    """Credit of one session on one queue; ``largest``: bytes of the largest of the recent transfers."""

    def __init__(self) -> None:
        self.largest = FIRST_GUESS_BYTES
        self._known = False
        self._most = FIRST_CREDIT
        self._arrived = 0

    def restart(self) -> None:
        """Start again with little credit: the session is new, or message sizes have jumped."""
        self._most = FIRST_CREDIT
        self._arrived = 0

    def arrived(self, count: int, largest: int) -> None:
        """Record a block of ``count`` transfers, the largest of ``largest`` bytes."""
        self.largest = max(largest, self.largest // 2) if self._known else largest
        self._known = True
        self._arrived += count
        if self._arrived >= self._most:
            self._most = min(MAX_CREDIT, 2 * self._most)
            self._arrived = 0

    def wanted(self, share_bytes: int) -> int:
        """Messages that may be under way while ``share_bytes`` of the budget are free for this queue."""
        return min(self._most, share_bytes // self.largest, (share_bytes + SLACK_BYTES) // HEADER_BYTES)

    def is_too_much(self, credit: int, credit_bytes: float, share_bytes: int) -> bool:
        """Whether the outstanding credit exceeds the share by far, so that it must be revoked."""
        return min(credit * self.largest, credit_bytes) > share_bytes + UNDER_WAY_BYTES


class CreditFlowControl:
    """Credit of one queue; see :class:`.FlowControl`."""

    def __init__(self, queue: str, held: ReceiveBuffer) -> None:
        self.paused = False
        self.most: int | None = None
        self._queue = queue
        self._held = held
        self._lock = held.changed
        self._clock = held.clock
        self._window = CreditWindow()
        self._turn_since: float | None = None
        """Since when there is credit for one message of any size; infinite: it was revoked."""
        self._in_vain = False
        """Whether the latest turn brought nothing, and nothing has arrived since."""
        self._arrived_at = self._left_at = self._renewed_at = float("-inf")

    def expect(self, _count: int, _nbytes: int) -> None:
        """Nothing: credit starts small."""

    def most_unsettled(self, _at_most: int | None = None, *, looks: bool = True) -> None:
        """Only credit limits a subscription."""

    def may_raise_limit(self) -> bool:
        """No: there is no limit."""
        return False

    def before_session(self, _is_asked: Callable[[], bool]) -> None:
        """Nothing comes without credit."""

    def may_begin_anew(self) -> bool:
        """Never asked: credit bounds what may come."""
        return True

    def restart(self) -> None:
        """Reset for a new session."""
        self.paused = False
        self._in_vain = False
        self._window.restart()

    def end(self) -> None:
        """End a turn, if there is one."""
        self.leave_turn()

    def arrived(self, block: Block) -> None:
        """Record the message sizes of a block."""
        self._window.arrived(len(block.ends), block.largest)
        self._arrived_at = self._clock()
        self._in_vain = False

    def announce(self, subscription: Subscription) -> None:
        """Reserve budget: the thread is about to wait for an answer of the broker and takes all transfers before it.

        Until :meth:`regulate` runs again, other queues get no credit for the bytes that may arrive here.
        """
        may_come = subscription.credit_bytes
        with self._lock:  # the one message of a turn may exceed the budget
            self._held.awaited[self._queue] = 0 if may_come == float("inf") else int(may_come)

    def take_timeout(self) -> float:
        """Seconds to wait for transfers before credit is regulated again."""
        with self._lock:
            contended = self._held.turns.is_contended()
            waits = self._held.turns.waits(self._queue)
        if self._turn_since is not None and (contended or self._turn_since == float("inf")):
            return TURN_SECONDS
        if waits or self.paused:
            return IDLE_SECONDS  # another thread wakes this one
        return max(QUIET_SECONDS, self._left_at + RETURN_SECONDS - self._clock())

    def regulate(self, client: Client, subscription: Subscription, *, left: int, idles: bool) -> None:
        """Grant credit from the free part of the budget; when it is used up, stop reading the socket (design: credit).
        ``left``: messages that are still wanted; ``idles``: whether a queue that receives nothing gets credit for a
        message larger than its share."""
        with self._lock:
            free = self._held.budget_bytes - self._held.bytes
            own = self._held.buffers[self._queue].held_bytes
            self._held.awaited.pop(self._queue, None)
            awaited = sum(self._held.awaited.values())
        paused = free <= 0
        if paused != self.paused:
            client.pause_reading(paused)
            self.paused = paused
        if self._turn_since is not None and not self._turn_ends(subscription):
            return
        share = max(0, free) // len(self._held.buffers)
        now = self._clock()
        quiet = idles and now - self._arrived_at >= QUIET_SECONDS
        rested = now - self._left_at >= RETURN_SECONDS
        credit, under_way = subscription.credit, subscription.credit_bytes
        want = self._window.wanted(share)
        # Held messages may wait for further ones (minMessagesPerTrigger), which only arrive with a turn.
        room = own == 0 or free >= min(self._window.largest, self._held.budget_bytes // 2)
        # The queue is empty, or its next message is larger than its share or than its remaining credit.
        turn = (quiet and rested and credit) if want else (rested or not (idles and self._in_vain))
        if room and free > 0 and left and turn:
            self._take_turn(subscription, idle=bool(want) or self._in_vain)
            return
        self.leave_turn()
        if self._window.is_too_much(credit, under_way, share):
            subscription.renew(0)
            self._window.restart()
            return
        want = min(want, left)
        low = credit <= want // 2 or under_way <= share // 2
        more, more_bytes = want - credit, min(share, free - awaited) - under_way
        once = quiet and self._arrived_at > self._renewed_at  # else a queue that receives nothing would renew forever
        if (low or once) and more > 0 and more_bytes >= self._window.largest:
            self._renewed_at = now
            subscription.renew(more, int(more_bytes))

    def _take_turn(self, subscription: Subscription, *, idle: bool) -> None:
        """Grant credit for one message of any size; if another queue has such credit, wait in line for it."""
        with self._lock:
            joins = not self._held.turns.waits(self._queue)
            first = self._held.turns.take(self._queue, idle=idle)
        if first == self._queue:
            self._turn_since = self._clock()
            subscription.renew(1)
        elif joins:
            self._held.wake[first]()  # so that it can end its turn

    def has_room(self) -> bool:
        """Whether the socket is read: the credit is regulated all the time."""
        return not self.paused

    def probe(self, subscription: Subscription) -> Sequence[Block] | None:
        """See :meth:`.FlowControl.probe`: this is a turn, which :meth:`leave_turn` ends; None while another queue has
        it, or nothing of the budget is free."""
        if self.paused or subscription.credit == 0 or not self._enter_turn():
            return None
        subscription.probe()
        return subscription.take_blocks(0)

    def _enter_turn(self) -> bool:
        with self._lock:
            if self._held.bytes >= self._held.budget_bytes or not self._held.turns.is_free_for(self._queue):
                return False
            self._held.turns.take(self._queue)
        self._turn_since = self._clock()
        return True

    def _turn_ends(self, subscription: Subscription) -> bool:
        """Whether the turn is over: its message has come, or its credit was taken back and none is left."""
        assert self._turn_since is not None
        if not subscription.credit:
            self.leave_turn()
            return True
        with self._lock:
            contended = self._held.turns.is_contended()
        came = self._arrived_at > self._turn_since
        if came or self._clock() - self._turn_since >= (TURN_SECONDS if contended else IDLE_SECONDS):
            # The message may have been under way before the turn: then the broker still has its credit. Or the credit
            # exists on our side only, since the stop before it completed late. The answer to another stop decides.
            self._turn_since = float("inf")
            if not came:
                self._left_at = self._clock()
                self._in_vain = True
            subscription.renew(0)
        return False

    def leave_turn(self) -> None:
        """End the turn: another queue may have credit for one message of any size."""
        self._turn_since = None
        with self._lock:
            following = self._held.turns.leave(self._queue)
        if following is not None:
            self._held.wake[following]()
