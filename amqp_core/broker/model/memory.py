"""How much memory the messages of a broker take, and whether that is too much."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Protocol

from amqp_core.broker.model.errors import Refusal, Refused

if TYPE_CHECKING:
    from amqp_core.broker.model.messages import Message

# Measured (box_message_bytes): a waiting message takes some 550 bytes besides header and body.
MESSAGE_BYTES: Final = 400
"""What a message takes besides its header and body."""
ENTRY_BYTES: Final = 150
"""What a message takes in each queue."""
RESUMED_AT: Final = 0.8
"""Share of a limit at which publishers that were stopped at it may go on."""
_CRITICAL: Final = 1.25
_MOST_UNCOMMITTED: Final = 0.5


class Restraint(Protocol):
    """What has no room for more messages at present: publishers are stopped until it has."""

    @property
    def holds(self) -> bool:
        """Whether publishers have to wait."""

    @property
    def is_critical(self) -> bool:
        """Whether it is so far above its limit that a connection is closed if it publishes and also consumes."""

    @property
    def reason(self) -> str:
        """What has no room, for people."""


class Pool:
    """Messages that are counted together. A message is in one pool at most, and leaves it with its last reference."""

    __slots__ = ("nbytes",)

    def __init__(self) -> None:
        self.nbytes = 0

    def take(self, message: Message) -> None:
        """Count a message here, and nowhere else."""
        size = message.size + MESSAGE_BYTES
        if message.pool is not None:
            message.pool.nbytes -= size
        message.pool = self
        self.nbytes += size


class Memory:
    """The memory of all virtual hosts of a broker.

    Publishers are stopped while more than ``limit`` is used. Messages in queues alone decide when they may go on: what
    is in transactions or under way does not become less while its own publisher is stopped.

    Args:
        limit: in bytes.

    Attributes:
        queued: messages in queues, and their places there.
        uncommitted: messages of transactions and branches that are not committed.
        transit: bytes of messages that have not arrived whole, and of output that a socket has not taken yet.
        enough: while the queues hold no more bytes than this, publishers are not stopped.
    """

    __slots__ = ("_is_short", "enough", "limit", "queued", "transit", "uncommitted")

    def __init__(self, limit: float = math.inf) -> None:
        self.limit = limit
        self.enough = limit * RESUMED_AT
        self.queued = Pool()
        self.uncommitted = Pool()
        self.transit = 0
        self._is_short = False

    def __repr__(self) -> str:
        return f"<memory: {self.used} bytes of {self.limit}>"

    @property
    def used(self) -> int:
        """Bytes of everything that is counted."""
        return self.queued.nbytes + self.uncommitted.nbytes + self.transit

    @property
    def holds(self) -> bool:
        """Whether publishers have to wait."""
        if self.queued.nbytes <= self.enough:
            self._is_short = False
        elif self.used > self.limit:
            self._is_short = True
        return self._is_short

    @property
    def is_critical(self) -> bool:
        """Whether the messages in queues are far above the limit."""
        return self.queued.nbytes > self.limit * _CRITICAL

    @property
    def reason(self) -> str:
        """What has no room, for people."""
        return f"low on memory: {self.used} bytes are used, {self.limit:.0f} are the limit"

    def admit(self, message: Message) -> None:
        """Count a message that is published in a transaction, until it is in a queue or dropped.

        Raises:
            Refused: RESOURCE_LIMIT, transactions take up half of the limit already. They would never end if their
                publishers were stopped.
        """
        most = self.limit * _MOST_UNCOMMITTED
        if self.uncommitted.nbytes + message.size + MESSAGE_BYTES > most:
            text = (
                f"transactions that are not committed would take more than {most:.0f} bytes, half of the memory limit"
            )
            raise Refused(Refusal.RESOURCE_LIMIT, text)
        self.uncommitted.take(message)
