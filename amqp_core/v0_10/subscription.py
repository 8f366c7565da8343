"""A subscription in credit mode: credit out, blocks of transfers in (0-10 section message: flow, flush, stop).

Added credit (:meth:`Subscription.grant`) has no limit in bytes: Broker-J stalls for good on a message larger than the
rest of a finite limit, even if more is added. Replaced credit (:meth:`Subscription.renew`) may have one: the stop
before it ends the stall. Only a limit in bytes holds if messages become larger than before, since Broker-J queues all
messages that it has credit for, and a later stop does not recall them.

A subscription with a limit of unsettled messages grants its credit itself, as messages are settled.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from amqp_core.arrivals import Arrivals
from amqp_core.error_conditions import CoreCondition
from amqp_core.errors import AmqpError, ProtocolError, UsageError
from amqp_core.sequence_numbers import RangeSet
from amqp_core.transport import monotonic
from amqp_core.v0_10 import spec
from amqp_core.v0_10.awaited_stop import AwaitedStop
from amqp_core.v0_10.messages import Message, each_message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from amqp_core.blocks import Block
    from amqp_core.v0_10.driver import Driver

_INFINITE = 0xFFFFFFFF
# Least credit that take() grants, so that single calls do not cost a round trip each.
_TAKE_CREDIT = 64
# Most credit that the broker has at a time, however much was granted: Broker-J stops for good at 65,536 sent commands
# that are not completed, which includes those in socket buffers. The rest is sent as transfers arrive.
_WINDOW = 16384
# Credit that brought nothing for so long is replaced: Broker-J sometimes stops serving one of several competing
# consumers, although there are messages, until its credit changes (some 2 in 100 that subscribe while messages arrive).
_FORGOTTEN_SECONDS = 2.0


class UnsettledLimit:
    """The messages of a subscription that are not settled, of which there may be ``most``. Not thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._unsettled = RangeSet()

    def arrived(self, first_id: int, count: int) -> None:
        """Record transfers with consecutive ids."""
        self._unsettled.add(first_id, first_id + count - 1)

    def settled(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Record settled transfers; others may be among them."""
        for low, high in ranges:
            self._unsettled.discard(low, high)

    def due(self, credit: int) -> int:
        """Number of messages to add to ``credit``: none while it has more than half of the limit."""
        return self._most - self._unsettled.count() - credit if credit <= self._most // 2 else 0

    def is_much(self, messages: int) -> bool:
        """Whether so many are worth a command of their own."""
        return messages >= max(1, self._most // 2)


class Subscription(Arrivals[Message]):
    """A subscription of a queue; made by :meth:`Client.subscribe`. Not thread-safe.

    Every method that sends or waits raises the error that ended the connection or session (see :class:`Client`), and
    DeadlineExceeded if an awaited answer does not arrive within the call timeout.
    """

    def __init__(
        self,
        client: Driver,
        destination: str,
        on_cancel: Callable[[str], None],
        before_wait: Callable[[], None],
        limit: UnsettledLimit | None = None,
    ) -> None:
        super().__init__()
        self._client = client
        self._before_wait = before_wait  # of a program that waits here other subscriptions may have room, too
        self._limit = limit
        self._on_cancel = on_cancel
        self.destination = destination
        self._credit = 0
        self._given = 0  # the part of the credit that the broker has
        self._given_bytes = 0.0
        self._bound: int | None = None  # bytes that the latest renewal asked for
        self._before = 0  # credit from before a stop that is not known to be complete; the broker may have used it
        self._before_bytes = 0.0
        self._stop_id: int | None = None  # command id of that stop
        self._awaited = AwaitedStop(client)
        self._early = 0  # messages that arrived since, and may have used the credit after it
        self._uncertain = False  # whether some did, so that the broker may have less credit than is counted
        self._ending = False  # a call that zeroes the credit is under way: credit sent after it would be incomplete
        self._changed_at = monotonic()  # when credit was last sent or used

    @property
    def credit(self) -> int:
        """Number of messages that may still arrive: granted, or under way when the credit was replaced."""
        self._look_for_answer()
        return self._credit

    @property
    def credit_bytes(self) -> float:
        """Bytes of transfers that may still arrive; infinite without a limit. Brokers may count bodies only."""
        self._look_for_answer()
        return self._before_bytes + self._given_bytes if self._credit else 0.0

    def grant(self, messages: int) -> None:
        """Let the broker send ``messages`` more, of any size (message.flow).

        A large number is sent to the broker in parts.

        Raises:
            UsageError: the subscription has a limit of unsettled messages.
        """
        self._check_credit_is_ours("grant")
        self._grant(messages)

    def _grant(self, messages: int) -> None:
        self._client.check()
        if 0 < self._given_bytes < math.inf:  # a broker may stall on the rest of a limit: replace it
            self._renew(self._credit - self._before + messages)
            return
        self._credit += messages
        for command in self._to_give():
            self._client.send(command)

    def renew(self, messages: int, nbytes: int | None = None) -> None:
        """Replace the remaining credit, without waiting (message.stop, message.flow).

        Messages that the broker sent before it processes this still arrive: they count in :attr:`credit` and
        :attr:`credit_bytes` until the broker has answered. 0 messages revoke all credit.

        Args:
            messages: number that may arrive from now on; with ``nbytes`` at most 16,384.
            nbytes: bytes that may arrive from now on; ``None``: no limit. The broker sends no message larger than the
                rest of them.

        Raises:
            UsageError: the subscription has a limit of unsettled messages.
        """
        self._check_credit_is_ours("renew")
        self._renew(messages, nbytes)

    def cease(self) -> None:
        """Revoke all credit, as ``renew(0)`` does."""
        self.renew(0)

    @property
    def ceased(self) -> bool:
        """Whether there is no credit, and no transfer is under way."""
        return not self.credit

    def bound(self, _admits: Callable[[int, int, int], bool], _dropped: Callable[[Block], None] | None = None) -> None:
        """Refused, since credit bounds what may come.

        Raises:
            UsageError: always.
        """
        reason = "bound() is for protocols without credit; renew() says how many bytes may come"
        raise UsageError(CoreCondition.CALL_NOT_ALLOWED(reason=reason))

    @property
    def overflowed(self) -> bool:
        """False: nothing is dropped."""
        return False

    def _check_credit_is_ours(self, call: str) -> None:
        if self._limit is not None:
            reason = f"{call} changes the credit of a subscription with a limit of unsettled messages"
            raise UsageError(CoreCondition.CALL_NOT_ALLOWED(reason=reason))

    def fill(self) -> None:
        """Grant the credit that the limit of unsettled messages allows, if there is one; the client calls it.

        Credit that brought nothing for long is taken back first, because the broker may have forgotten it; it is
        granted again after the answer, so that messages under way do not exceed the limit.
        """
        if self._limit is None or self._ending:
            return
        self._look_for_answer()
        if self._given and self._stop_id is None and self._brings_nothing():
            self._replace(0)
        self._queue_room()
        self._client.write()  # the next wait raises a failure, after it has returned all blocks

    def settled(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Make room for other messages: the client, which calls this, has settled these transfers and perhaps others.

        Little room is left to the next wait: grants are few, although a program may settle one message at a time.
        """
        if self._limit is not None:
            self._limit.settled(ranges)
            if self._limit.is_much(self._limit.due(self._credit)):
                self.fill()

    def _queue_room(self) -> None:
        """Queue the credit that the limit allows. Without a limit, or while a stop is not answered: none."""
        more = 0 if self._limit is None or self._stop_id is not None else self._limit.due(self._credit)
        if more > 0:
            self._credit += more
            for command in self._to_give():
                self._client.queue(command)

    def _renew(self, messages: int, nbytes: int | None = None) -> None:
        self._client.check()
        self._replace(messages, nbytes)
        self._client.flush_queued()

    def _replace(self, messages: int, nbytes: int | None = None) -> None:
        client = self._client
        if nbytes is not None:
            messages, nbytes = min(messages, _WINDOW), min(nbytes, _INFINITE - 1)
        self._bound = nbytes
        self._before += self._given
        self._before_bytes += self._given_bytes
        self._given, self._given_bytes = 0, 0.0
        self._credit = self._before + messages
        self._early, self._uncertain = 0, False
        self._stop_id = client.queue(spec.MessageStop(destination=self.destination), sync=True)
        if self._stop_id is not None:  # else the session is ending
            self._awaited.sent(self._stop_id)
        if nbytes is not None:
            self._given_bytes = nbytes = max(1, nbytes)  # 0 would be taken for "not given yet"
            client.queue(self._flow(spec.MessageCreditUnit.BYTE, nbytes))
        for command in self._to_give():
            client.queue(command)

    def _to_give(self) -> Iterator[spec.MessageFlow]:
        """Commands that give the broker as much of the credit as allowed; none for a small part."""
        withheld = self._credit - self._given - self._before
        # Credit from before a stop is not counted: it may be unused, and credit waiting for the answer is never sent.
        room = _WINDOW - self._given
        if withheld <= 0 or room < min(withheld, _WINDOW // 2):
            return
        if not self._given_bytes:
            # flush and stop zero both credits on both brokers
            self._given_bytes, self._bound = math.inf, None
            yield self._flow(spec.MessageCreditUnit.BYTE, _INFINITE)
        messages = min(withheld, room)
        self._given += messages
        self._changed_at = monotonic()
        yield self._flow(spec.MessageCreditUnit.MESSAGE, messages)

    def take_blocks(self, timeout: float, *, begun: bool = False) -> list[Block]:
        """Return the blocks that have arrived; wait at most ``timeout`` seconds for some.

        A wake-up ends the wait, and so does the answer to a stop if no credit is left. The caller must renew credit
        that brings nothing for long, since a broker may have forgotten it; with a limit of unsettled messages the
        client does, and this call may return early.

        Args:
            timeout: in seconds.
            begun: a large message of which the first part arrives ends the wait, too (:attr:`Client.under_way_bytes`).

        Raises:
            DeadlineExceeded: a stop is not answered, and for 60 s, or two heartbeats if these take longer, the broker
                sent nothing but heartbeats.
            AmqpError: the connection or session has ended, and all blocks that arrived before were returned.
        """
        deadline = monotonic() + timeout
        self._before_wait()
        if self._limit is not None:
            deadline = min(deadline, monotonic() + _FORGOTTEN_SECONDS)
        return self._wait_for_blocks(deadline, until_answered=False, begun=begun)

    def _wait_for_blocks(self, deadline: float, *, until_answered: bool, begun: bool = False) -> list[Block]:
        """As :meth:`take_blocks`; ``until_answered``: any answer to a stop ends the wait, as credit may be missing."""
        client = self._client
        known = client.connection.under_way_bytes > 0
        if not self._blocks:
            client.check()
        while not self._blocks:
            stopping, overdue = self._stop_id is not None, self._is_overdue()
            woken = client.pump(deadline, reading=client.reading)
            if not self._blocks:
                client.check()
                self._look_for_answer()
                if overdue and self._is_overdue():  # also after what had arrived was read
                    client.give_up("the answer to message.stop")
                answered = stopping and self._stop_id is None and (until_answered or not self._given)
                begins = begun and not known and client.connection.under_way_bytes > 0
                if woken or answered or begins or monotonic() >= deadline:
                    break
        return self.take_arrived()

    def take(self, count: int = 1, *, timeout: float = 10.0) -> list[Message]:
        """Return up to ``count`` messages as objects, waiting at most ``timeout`` seconds for the first of them.

        More messages than ``count`` may arrive; later calls return them, and at close they go back to the queue.

        Raises:
            UndecodableMessage: the next message cannot be decoded. Previous calls have returned those before it, the
                next call returns those after it; it can be settled by its ``command_id``.
            AmqpError: the connection or session has ended, and all messages that arrived before were returned.
        """
        deadline = monotonic() + timeout
        while len(self._messages) < count:
            try:
                blocks = self._take_more(count - len(self._messages), deadline)
            except AmqpError:
                if self._messages:
                    break
                raise
            if not blocks and (self._messages or monotonic() >= deadline):
                break
        return self._next_up_to(count)

    def _take_more(self, missing: int, deadline: float) -> list[Block]:
        """Decode arrived blocks after granting credit for missing messages; wait only if there is no message."""
        credit = self.credit
        if self._limit is None and self._uncertain:
            self._renew(max(missing, _TAKE_CREDIT))
        elif self._limit is None and credit < missing:
            self._grant(max(missing, _TAKE_CREDIT) - credit)
        until = monotonic() if self._messages else self._renew_forgotten(deadline, reading=self._client.reading)
        blocks = self._wait_for_blocks(until, until_answered=True)
        for block in blocks:
            self._messages.extend(each_message(block))
        return blocks

    def take_one(self, *, timeout: float) -> Message | None:
        """Return the next message within the credit; ``None`` if none arrived within ``timeout`` seconds.

        Unlike :meth:`take` it adds no credit to what was granted, and it reads even if reading is paused: transfers of
        other subscriptions that arrive then wait there.

        Raises:
            UndecodableMessage: as :meth:`take`.
            AmqpError: the connection or session has ended.
        """
        client = self._client
        deadline = monotonic() + timeout
        while not self._messages:
            while self._blocks:
                self._messages.extend(each_message(self._blocks.pop(0)))
            if self._messages:
                break
            client.check()
            if monotonic() >= deadline:
                return None
            until = self._renew_forgotten(deadline, reading=True)
            if not self._blocks:
                client.pump(until, reading=True)
        return self._next()

    def _renew_forgotten(self, deadline: float, *, reading: bool) -> float:
        """Replace credit that the broker may have forgotten; return the time of the next check."""
        self._before_wait()
        self._look_for_answer()
        if self._limit is not None:
            return min(deadline, monotonic() + _FORGOTTEN_SECONDS)
        if not self._given or self._stop_id is not None:
            return deadline
        if self._brings_nothing():
            self._client.pump(monotonic(), reading=reading)  # a message may wait in the socket
        if self._brings_nothing():
            self._renew(self._credit, self._bound)
        return min(deadline, self._changed_at + _FORGOTTEN_SECONDS)

    def _is_overdue(self) -> bool:
        return self._stop_id is not None and self._awaited.is_overdue(self._stop_id)

    def _brings_nothing(self) -> bool:
        return monotonic() - self._changed_at >= _FORGOTTEN_SECONDS

    @property
    def may_receive(self) -> bool:
        """Whether the broker has unused credit, so that transfers may arrive."""
        self._look_for_answer()
        return self._given + self._before > 0

    def flush(self) -> None:
        """Let the broker send all available messages within the credit, and wait until it has (message.flush).

        Credit is zero afterwards. With competing consumers Broker-J may end a flush early: there an empty round does
        not prove an empty queue.

        Raises:
            UsageError: the subscription has a limit of unsettled messages.
        """
        self._check_credit_is_ours("flush")
        while True:
            left = self._call_ending(spec.MessageFlush(destination=self.destination))
            if left or not self._credit:
                break
            # the broker used all the credit that it was given, and more was granted
            for command in self._to_give():
                self._client.send(command)
        self._credit = 0

    def probe(self) -> None:
        """Replace all credit by credit for one message, and wait until the broker has sent it or has none.

        Unlike :meth:`flush` it limits the messages that arrive before the answer: those under way, and one more. Credit
        is zero afterwards.

        Raises:
            UsageError: the subscription has a limit of unsettled messages.
        """
        self._check_credit_is_ours("probe")
        self._renew(1)
        self._end_credit(spec.MessageFlush(destination=self.destination))

    def stop(self) -> None:
        """Revoke all credit (message.stop) and wait until the broker has stopped sending.

        Raises:
            UsageError: the subscription has a limit of unsettled messages.
        """
        self._check_credit_is_ours("stop")
        self._end_credit(spec.MessageStop(destination=self.destination))

    def cancel(self) -> None:
        """End the subscription (message.cancel). Received messages can still be accepted or released."""
        self._end_credit(spec.MessageCancel(destination=self.destination))
        self._on_cancel(self.destination)

    def receive_block(self, block: Block) -> None:
        """Take a block that the client has numbered.

        While a flush, stop or cancel is under way the broker may still use its previous credit; it has certainly none
        left only when the command is complete.

        Raises:
            ProtocolError: more transfers than the broker has credit for. Those within the credit are taken. (Bytes
                cannot be checked: Broker-J inflates bodies with content-encoding gzip after it has counted them, and
                does not count headers.)
        """
        self._look_for_answer()
        count, allowed = len(block.ends), self._given + self._before
        if count <= allowed:
            self._take_in(block)
            return
        if allowed:
            self._take_in(block.part(0, allowed, 0, block.ends[allowed - 1]))
        raise ProtocolError(
            f"the broker sent {count} message(s) to destination {self.destination!r}, where it had a credit of "
            f"{allowed}"
        )

    def _take_in(self, block: Block) -> None:
        count, nbytes = len(block.ends), len(block.frames)
        self._changed_at = monotonic()
        self._awaited.moved()
        self._blocks.append(block)
        self._credit -= count
        early = min(count, self._before)
        self._early += early
        self._before -= early
        self._given -= count - early
        early_bytes = min(nbytes, self._before_bytes)
        self._before_bytes -= early_bytes
        if self._given_bytes:
            # The broker may count less of a transfer than its frames, and so have more left than this: never 0.
            self._given_bytes = max(1.0, self._given_bytes - (nbytes - early_bytes))
        if self._limit is not None:
            self._limit.arrived(block.first_id, count)
        if not self._ending:
            self._queue_room()
            for command in self._to_give():
                self._client.queue(command)

    def _look_for_answer(self) -> None:
        """Check whether a stop is complete: then all messages sent before it have arrived, since order is kept."""
        if self._stop_id is not None and self._client.is_complete(self._stop_id):
            self._forget_before()
            if not self._ending:
                self._queue_room()

    def _forget_before(self) -> None:
        self._stop_id = None
        self._uncertain, self._early = self._early > 0, 0
        self._credit -= self._before
        self._before, self._before_bytes = 0, 0.0

    def _flow(self, unit: int, value: int) -> spec.MessageFlow:
        return spec.MessageFlow(destination=self.destination, unit=unit, value=value)

    def _end_credit(self, command: spec.Command) -> None:
        self._call_ending(command)
        self._credit = 0

    def _call_ending(self, command: spec.Command) -> int:
        """Call a command that zeroes the credit at the broker; return the unused part."""
        self._ending = True
        try:
            self._client.call(command)
        finally:
            self._ending = False
        self._forget_before()
        left = self._given
        self._given, self._given_bytes, self._uncertain = 0, 0.0, False
        return left
