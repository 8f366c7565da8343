"""Messages of a queue one at a time, each when it is wanted (0-9-1 section basic.get).

A prefetch does not limit them: on Broker-J that of a subscription counts for all of its channel, so that a second
subscription there could get nothing while the messages of the first one are not settled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqp_core.transport import monotonic

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.v0_9.driver import Driver
    from amqp_core.v0_9.messages import Message

ASK_AGAIN_SECONDS: Final = 0.05
"""Pause between two attempts to get a message from an empty queue."""


class Fetcher:
    """Receives single messages of a queue; made by :meth:`Client.fetcher`. Not thread-safe.

    Args:
        get: asks the broker for the first message; raises the errors of :meth:`Client.get`.
    """

    def __init__(self, driver: Driver, get: Callable[[], Message | None]) -> None:
        self._driver = driver
        self._get = get
        self._wanted = 0

    def grant(self, messages: int) -> None:
        """Allow so many messages more. Nothing is sent."""
        self._wanted += messages

    def take_one(self, *, timeout: float) -> Message | None:
        """Return the next message that was granted; ``None`` if there is none for ``timeout`` seconds.

        Raises:
            UndecodableMessage, NotFound, ...: those of :meth:`Client.get`.
        """
        deadline = monotonic() + timeout
        while self._wanted:
            message = self._get()
            if message is not None:
                self._wanted -= 1
                return message
            now = monotonic()
            if now >= deadline:
                break
            self._driver.pump(min(deadline, now + ASK_AGAIN_SECONDS), reading=self._driver.reading)
        return None

    def cancel(self) -> None:
        """End it. Nothing is under way."""
        self._wanted = 0
