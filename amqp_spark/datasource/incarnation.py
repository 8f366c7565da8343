"""One incarnation of a consumer: what it has reached, and whether it was useful."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from amqp_core.errors import ConnectionFailed, DeliveryTimedOut
from amqp_spark.errors import ConsumerStalled

if TYPE_CHECKING:
    from amqp_core.errors import AmqpError

LASTING_SECONDS: Final = 30.0
"""A session that lived so long, or settled something, was useful: the next retry pause is short again."""
CALM_SECONDS: Final = 1.0
"""If a session lived so long, and then lost its connection or had received nothing, no message ended it."""


@dataclass(slots=True)
class Incarnation:
    """What one incarnation of a consumer has reached."""

    served: bool = False
    """It has subscribed."""
    asked: bool = False
    """It got as far as asking for messages."""
    settled: bool = False
    """It has settled something."""
    there: int = 0
    """Messages that the broker counted when it began."""
    begun_at: int = 0
    """Position at which it began."""
    since: float = 0.0
    """When it subscribed."""

    def lasted(self, now: float) -> bool:
        """Whether it was useful."""
        return self.settled or (self.served and now - self.since >= LASTING_SECONDS)

    def worked(self, error: AmqpError, *, received: int, now: float) -> bool:
        """Whether to start the next incarnation as after success: this one was useful, was cut off, or was idle.

        Else it counts as a failed attempt: an incarnation that a message ends would be retried forever, and so would
        one whose messages are redelivered at once each time and end it before any can be settled. A delivery timeout
        is neither: a batch took longer than the broker waits, which may be less than a batch lasts, again and again.
        """
        if self.lasted(now) or isinstance(error, ConsumerStalled):
            return True
        if isinstance(error, DeliveryTimedOut) and received > self.begun_at:
            return True
        if isinstance(error, ConnectionFailed) and self.served and now - self.since >= CALM_SECONDS:
            return True
        idle = self.asked and received == self.begun_at
        return idle and (not self.there or now - self.since >= CALM_SECONDS)
