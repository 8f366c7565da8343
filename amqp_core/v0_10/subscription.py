"""A subscription in credit mode: credit out, blocks of transfers in (0-10 section message: flow, flush, stop).

Byte credit is always infinite: Broker-J stalls for good on a message larger than a finite byte credit. What may arrive
is bounded by message credit alone.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from amqp_core.transport import monotonic
from amqp_core.v0_10 import spec
from amqp_core.v0_10.messages import messages_of

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


class _Channel(Protocol):
    """What a subscription needs of its client."""

    reading: bool

    def send(self, command: spec.Command) -> int: ...

    def queue(self, command: spec.Command) -> None: ...

    def call(self, command: spec.Command, *, result: bool = False) -> object: ...

    def check(self) -> None: ...

    def pump(self, deadline: float, *, reading: bool) -> bool: ...


class Subscription:
    """A subscription of a queue; made by :meth:`Client.subscribe`."""

    def __init__(self, client: _Channel, destination: str, on_cancel: Callable[[str], None]) -> None:
        self._client = client
        self._on_cancel = on_cancel
        self.destination = destination
        self.credit = 0
        """Messages that were granted and have not come yet."""
        self._given = 0  # the part of the credit that the broker has
        self._ending = False  # a flush or stop is under way: credit sent after it would be half a credit
        self._bytes_granted = False
        self._blocks: list[Block] = []
        self._messages: deque[Message] = deque()

    def grant(self, messages: int) -> None:
        """Let the broker send ``messages`` more (message.flow). A large number reaches the broker in parts."""
        self._client.check()
        self.credit += messages
        for command in self._to_give():
            self._client.send(command)

    def _to_give(self) -> Iterator[spec.MessageFlow]:
        """What is to be sent so that the broker has as much of the credit as it may; nothing for a small part."""
        withheld = self.credit - self._given
        room = _WINDOW - self._given
        if withheld <= 0 or room < min(withheld, _WINDOW // 2):
            return
        if not self._bytes_granted:
            # flush and stop zero both credits on both brokers
            self._bytes_granted = True
            yield self._flow(spec.MessageCreditUnit.BYTE, _INFINITE)
        messages = min(withheld, room)
        self._given += messages
        yield self._flow(spec.MessageCreditUnit.MESSAGE, messages)

    def take_blocks(self, timeout: float) -> list[Block]:
        """Return the blocks that have arrived; wait for at most ``timeout`` seconds, or for a wake-up, for some.

        Raises:
            AmqpError: what ended the connection or session, once nothing that arrived before it is left to return.
        """
        client = self._client
        deadline = monotonic() + timeout
        if not self._blocks:
            client.check()
        while not self._blocks:
            woken = client.pump(deadline, reading=client.reading)
            if not self._blocks:
                client.check()
                if woken or monotonic() >= deadline:
                    break
        blocks, self._blocks = self._blocks, []
        return blocks

    def take(self, count: int = 1, *, timeout: float = 10.0) -> list[Message]:
        """Return up to ``count`` messages as objects, waiting at most ``timeout`` seconds for the first of them.

        More may arrive than are asked for; they are returned by later calls, and go back to the queue at close.
        """
        deadline = monotonic() + timeout
        while len(self._messages) < count:
            missing = count - len(self._messages)
            if self.credit < missing:
                self.grant(max(missing, _TAKE_CREDIT) - self.credit)
            remaining = 0.0 if self._messages else deadline - monotonic()
            blocks = self.take_blocks(max(0.0, remaining))
            for block in blocks:
                self._messages.extend(messages_of(block))
            if not blocks and (self._messages or monotonic() >= deadline):
                break
        return [self._messages.popleft() for _ in range(min(count, len(self._messages)))]

    def take_one(self, *, timeout: float) -> Message | None:
        """Return the next message that there is credit for; ``None`` if none came within ``timeout`` seconds.

        Unlike :meth:`take` it grants nothing, and it reads although reading is paused: what else arrives then waits in
        its own subscription.

        Raises:
            AmqpError: what ended the connection or session.
        """
        client = self._client
        deadline = monotonic() + timeout
        while not self._messages:
            while self._blocks:
                self._messages.extend(messages_of(self._blocks.pop(0)))
            if self._messages:
                break
            client.check()
            if monotonic() >= deadline:
                return None
            client.pump(deadline, reading=True)
        return self._messages.popleft()

    @property
    def may_receive(self) -> bool:
        """Whether the broker has credit that it has not used, so that something may come."""
        return self._given > 0

    def flush(self) -> None:
        """Let the broker send what it has for the credit granted, and wait until it has (message.flush).

        Credit is zero afterwards. With competing consumers Broker-J may end a flush early: an empty round is no proof
        of an empty queue there.
        """
        while True:
            self._end_credit(spec.MessageFlush(destination=self.destination))
            if self._given or not self.credit:
                break
            # the broker sent all that it had credit for, and more was granted than it was given
            for command in self._to_give():
                self._client.send(command)
        self.credit = self._given = 0

    def stop(self) -> None:
        """Take back all credit (message.stop) and wait until the broker sends no more."""
        self._end_credit(spec.MessageStop(destination=self.destination))
        self.credit = self._given = 0

    def cancel(self) -> None:
        """End the subscription (message.cancel). What was received stays to be accepted or released."""
        self._end_credit(spec.MessageCancel(destination=self.destination))
        self.credit = self._given = 0
        self._on_cancel(self.destination)

    def receive_block(self, block: Block) -> None:
        """Take a block that the client has numbered."""
        self._blocks.append(block)
        self.credit = max(0, self.credit - len(block.ends))
        self._given = max(0, self._given - len(block.ends))
        if not self._ending:
            for command in self._to_give():
                self._client.queue(command)

    def _flow(self, unit: int, value: int) -> spec.MessageFlow:
        return spec.MessageFlow(destination=self.destination, unit=unit, value=value)

    def _end_credit(self, command: spec.Command) -> None:
        """Call what zeroes the credit at the broker."""
        self._ending = True
        try:
            self._client.call(command)
        finally:
            self._ending = False
        self._bytes_granted = False
