"""A subscription in credit mode: credit out, blocks of transfers in (0-10 section message: flow, flush, stop).

Credit that is added up has no bound of bytes: Broker-J stalls for good on a message larger than what is left of a
finite one, also when more is added. Credit that is replaced (:meth:`Subscription.renew`) may have one: the stop before
it ends the stall. A bound of bytes is the only one that holds when messages become larger than those before, since
Broker-J queues all that it has credit for, and a later stop does not call that back.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Protocol

from amqp_core.errors import AmqpError, ProtocolError, UndecodableMessage
from amqp_core.transport import monotonic
from amqp_core.v0_10 import spec
from amqp_core.v0_10.messages import each_message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from amqp_core.v0_10.blocks import Block
    from amqp_core.v0_10.messages import Message

_INFINITE = 0xFFFFFFFF
# What take() asks for at least, so that single calls do not cost a round trip each.
_TAKE_CREDIT = 64
# What the broker is given at most at a time, however much was granted: Broker-J stops for good at 65,536 commands that
# it has sent and that are not completed, and those that wait in socket buffers are not. The rest follows as they come.
_WINDOW = 16384
# Credit that brought nothing for so long is replaced: of competing consumers Broker-J now and then forgets one, which
# gets nothing more, although there are messages, until its credit changes (some 2 in 100 that subscribe while messages
# come).
_FORGOTTEN_SECONDS = 2.0


class _Channel(Protocol):
    """What a subscription needs of its client."""

    reading: bool

    def send(self, command: spec.Command) -> int: ...

    def queue(self, command: spec.Command, *, sync: bool = False) -> int | None: ...

    def flush_queued(self) -> None: ...

    def is_complete(self, command_id: int) -> bool: ...

    def call(self, command: spec.Command) -> None: ...

    def check(self) -> None: ...

    def pump(self, deadline: float, *, reading: bool) -> bool: ...


class Subscription:
    """A subscription of a queue; made by :meth:`Client.subscribe`."""

    def __init__(self, client: _Channel, destination: str, on_cancel: Callable[[str], None]) -> None:
        self._client = client
        self._on_cancel = on_cancel
        self.destination = destination
        self._credit = 0
        self._given = 0  # the part of the credit that the broker has
        self._given_bytes = 0.0
        self._bound: int | None = None  # bytes that the latest renewal asked for
        self._before = 0  # what it had before a stop that is not known to be complete, and may have used
        self._before_bytes = 0.0
        self._stop_id: int | None = None  # command id of that stop
        self._early = 0  # messages that came since, and may have used the credit after it
        self._uncertain = False  # whether some did, so that the broker may have less credit than is counted
        self._ending = False  # a call that zeroes the credit is under way: credit sent after it would be half a credit
        self._changed_at = monotonic()  # when credit was sent last, or used
        self._blocks: list[Block] = []
        self._messages: deque[Message | UndecodableMessage] = deque()

    @property
    def credit(self) -> int:
        """Messages that may still come: granted, or under way when the credit was replaced."""
        self._look_for_answer()
        return self._credit

    @property
    def credit_bytes(self) -> float:
        """Bytes of transfers that may still come; infinite if they are not bounded. Brokers may count bodies only."""
        self._look_for_answer()
        return self._before_bytes + self._given_bytes if self._credit else 0.0

    def grant(self, messages: int) -> None:
        """Let the broker send ``messages`` more, of any size (message.flow).

        A large number reaches the broker in parts.
        """
        self._client.check()
        if 0 < self._given_bytes < math.inf:  # a broker may stall on the rest of a bound: it is replaced
            self.renew(self._credit - self._before + messages)
            return
        self._credit += messages
        for command in self._to_give():
            self._client.send(command)

    def renew(self, messages: int, nbytes: int | None = None) -> None:
        """Replace what is left of the credit, without waiting (message.stop, message.flow).

        What the broker has sent before it sees this still comes: it counts in :attr:`credit` and
        :attr:`credit_bytes` until the broker has answered. 0 messages take all credit back.

        Parameters:
            messages: that may come from now on; with ``nbytes`` at most 16,384.
            nbytes: bytes that may come from now on; ``None``: of any size. The broker sends no message that is larger
                than what is left of them.
        """
        client = self._client
        client.check()
        if nbytes is not None:
            messages, nbytes = min(messages, _WINDOW), min(nbytes, _INFINITE - 1)
        self._bound = nbytes
        self._before += self._given
        self._before_bytes += self._given_bytes
        self._given, self._given_bytes = 0, 0.0
        self._credit = self._before + messages
        self._early, self._uncertain = 0, False
        self._stop_id = client.queue(spec.MessageStop(destination=self.destination), sync=True)
        if nbytes is not None:
            self._given_bytes = nbytes = max(1, nbytes)  # 0 would be taken for "not given yet"
            client.queue(self._flow(spec.MessageCreditUnit.BYTE, nbytes))
        for command in self._to_give():
            client.queue(command)
        client.flush_queued()

    def _to_give(self) -> Iterator[spec.MessageFlow]:
        """What is to be sent so that the broker has as much of the credit as it may; nothing for a small part."""
        withheld = self._credit - self._given - self._before
        # What came before a stop is not counted: it may be nothing, and credit that waits for the answer is never sent.
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

    def take_blocks(self, timeout: float) -> list[Block]:
        """Return the blocks that have arrived; wait for at most ``timeout`` seconds for some.

        A wake-up ends the wait, and so does the answer to a stop when no credit is left. Credit that brings nothing for
        long is for the caller to renew, since a broker may have forgotten it.

        Raises:
            AmqpError: what ended the connection or session, once nothing that arrived before it is left to return.
        """
        return self._wait_for_blocks(monotonic() + timeout, until_answered=False)

    def take_arrived(self) -> list[Block]:
        """Return the blocks that other calls of the client have read; nothing is read now."""
        blocks, self._blocks = self._blocks, []
        return blocks

    def _wait_for_blocks(self, deadline: float, *, until_answered: bool) -> list[Block]:
        """As :meth:`take_blocks`; any answer to a stop may end the wait, since credit may be missing after it."""
        client = self._client
        if not self._blocks:
            client.check()
        while not self._blocks:
            stopping = self._stop_id is not None
            woken = client.pump(deadline, reading=client.reading)
            if not self._blocks:
                client.check()
                self._look_for_answer()
                answered = stopping and self._stop_id is None and (until_answered or not self._given)
                if woken or answered or monotonic() >= deadline:
                    break
        return self.take_arrived()

    def take(self, count: int = 1, *, timeout: float = 10.0) -> list[Message]:
        """Return up to ``count`` messages as objects, waiting at most ``timeout`` seconds for the first of them.

        More may arrive than are asked for; they are returned by later calls, and go back to the queue at close.

        Raises:
            UndecodableMessage: the next message cannot be decoded. Those before it have been returned by the calls
                before, those after it come with the next call; it can be settled by its ``command_id``.
            AmqpError: what ended the connection or session, once nothing that arrived before it is left to return.
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
        found: list[Message] = []
        while self._messages and len(found) < count:
            if found and isinstance(self._messages[0], UndecodableMessage):
                break
            found.append(self._next())
        return found

    def _take_more(self, missing: int, deadline: float) -> list[Block]:
        """Decode what has arrived, with credit for what is missing; wait for it only if there is no message."""
        credit = self.credit
        if self._uncertain:
            self.renew(max(missing, _TAKE_CREDIT))
        elif credit < missing:
            self.grant(max(missing, _TAKE_CREDIT) - credit)
        until = monotonic() if self._messages else self._renew_forgotten(deadline, reading=self._client.reading)
        blocks = self._wait_for_blocks(until, until_answered=True)
        for block in blocks:
            self._messages.extend(each_message(block))
        return blocks

    def take_one(self, *, timeout: float) -> Message | None:
        """Return the next message that there is credit for; ``None`` if none came within ``timeout`` seconds.

        Unlike :meth:`take` it grants nothing, and it reads although reading is paused: what else arrives then waits in
        its own subscription.

        Raises:
            UndecodableMessage: as :meth:`take`.
            AmqpError: what ended the connection or session.
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
        """Replace credit that the broker may have forgotten; return when that is to be looked at again."""
        self._look_for_answer()
        if not self._given or self._stop_id is not None:
            return deadline
        if self._brings_nothing():
            self._client.pump(monotonic(), reading=reading)  # a message may wait in the socket
        if self._brings_nothing():
            self.renew(self._credit, self._bound)
        return min(deadline, self._changed_at + _FORGOTTEN_SECONDS)

    def _brings_nothing(self) -> bool:
        return monotonic() - self._changed_at >= _FORGOTTEN_SECONDS

    def _next(self) -> Message:
        message = self._messages.popleft()
        if isinstance(message, UndecodableMessage):
            raise message
        return message

    @property
    def may_receive(self) -> bool:
        """Whether the broker has credit that it has not used, so that something may come."""
        self._look_for_answer()
        return self._given + self._before > 0

    def flush(self) -> None:
        """Let the broker send what it has for the credit granted, and wait until it has (message.flush).

        Credit is zero afterwards. With competing consumers Broker-J may end a flush early: an empty round is no proof
        of an empty queue there.
        """
        while True:
            left = self._call_ending(spec.MessageFlush(destination=self.destination))
            if left or not self._credit:
                break
            # the broker sent all that it had credit for, and more was granted than it was given
            for command in self._to_give():
                self._client.send(command)
        self._credit = 0

    def probe(self) -> None:
        """Replace all credit by credit for one message, and wait until the broker has sent it or has none.

        Unlike :meth:`flush` it bounds what the answer waits behind: messages that were under way, and one more. Credit
        is zero afterwards.
        """
        self.renew(1)
        self._end_credit(spec.MessageFlush(destination=self.destination))

    def stop(self) -> None:
        """Take back all credit (message.stop) and wait until the broker sends no more."""
        self._end_credit(spec.MessageStop(destination=self.destination))

    def cancel(self) -> None:
        """End the subscription (message.cancel). What was received stays to be accepted or released."""
        self._end_credit(spec.MessageCancel(destination=self.destination))
        self._on_cancel(self.destination)

    def receive_block(self, block: Block) -> None:
        """Take a block that the client has numbered.

        While a flush, stop or cancel is under way the broker may still use what it was given before; that it has none
        left is certain only when the command is complete.

        Raises:
            ProtocolError: more transfers than the broker has credit for. Those that it had credit for are taken. (Of
                bytes there is no such proof: Broker-J inflates bodies with content-encoding gzip after it has counted
                them, and does not count headers.)
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
        self._blocks.append(block)
        self._credit -= count
        early = min(count, self._before)
        self._early += early
        self._before -= early
        self._given -= count - early
        early_bytes = min(nbytes, self._before_bytes)
        self._before_bytes -= early_bytes
        if self._given_bytes:
            # The broker may count less of a transfer than its frames, and so have more left than this: never nothing.
            self._given_bytes = max(1.0, self._given_bytes - (nbytes - early_bytes))
        if not self._ending:
            for command in self._to_give():
                self._client.queue(command)

    def _look_for_answer(self) -> None:
        """Take note that a stop is complete: what was sent before it has come, since all comes in order."""
        if self._stop_id is not None and self._client.is_complete(self._stop_id):
            self._forget_before()

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
        """Call what zeroes the credit at the broker; return how much of it the broker did not use."""
        self._ending = True
        try:
            self._client.call(command)
        finally:
            self._ending = False
        self._forget_before()
        left = self._given
        self._given, self._given_bytes, self._uncertain = 0, 0.0, False
        return left
