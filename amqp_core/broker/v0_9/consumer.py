"""One consumer of a channel: its prefetch, and where its messages go."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amqp_core.broker.model.entries import Entry
    from amqp_core.broker.model.queues import Consumer
    from amqp_core.broker.v0_9.channel import ServerChannel


class ChannelConsumer:
    """The receiver of a consumer (basic.consume).

    Args:
        tag: its consumer tag.
        no_ack: its messages are settled when they are sent.
        prefetch: most messages that it holds; 0: any number (basic.qos when it was made).
    """

    __slots__ = ("channel", "consumer", "held", "no_ack", "prefetch", "tag")

    def __init__(self, channel: ServerChannel, tag: str, *, no_ack: bool, prefetch: int) -> None:
        self.channel = channel
        self.tag = tag
        self.no_ack = no_ack
        self.prefetch = prefetch
        self.held = 0
        self.consumer: Consumer | None = None
        """Its place at the queue, once it is there."""

    def has_room(self, size: int) -> bool:
        """Whether the prefetch of the consumer and of the channel, and the connection, allow one more."""
        if not self.channel.can_send:
            return False
        if self.no_ack:
            return True
        if self.prefetch and self.held >= self.prefetch:
            return False
        return not self.channel.is_full

    def deliver(self, entry: Entry) -> None:
        """Send a message (basic.deliver)."""
        if not self.no_ack:
            self.held += 1
        self.channel.deliver(self, entry)

    def cancelled(self) -> None:
        """The queue is gone."""
        self.channel.consumer_lost(self)
