"""Publishers that are stopped over 0-9-1: connection.blocked, channel.flow, and the brake of the connection.

As on RabbitMQ a connection is not read once it has published what there is no room for: clients of this protocol
cannot be relied on to stop by themselves. Its acks wait in its socket then, with all else that it sends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_core.broker.model.memory import Memory
from amqp_core.broker.restraints import Restraints
from amqp_core.v0_9 import spec
from amqp_core.v0_9.channel import ChannelState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amqp_core.broker.model.memory import Restraint
    from amqp_core.broker.v0_9.connection import ServerConnection
    from amqp_core.v0_9.channel import Channel


class Blocking(Restraints):
    """What the publishers of one connection wait for, and what they were told. Not thread-safe."""

    def __init__(self, connection: ServerConnection) -> None:
        super().__init__()
        self._connection = connection
        self._stopped: dict[Channel, None] = {}
        """Channels that were told to stop (channel.flow)."""
        self._told = False
        """Whether connection.blocked was sent."""

    def stop(self, channel: Channel, restraints: Iterable[Restraint]) -> None:
        """A channel has published what has no room for more."""
        restraints = list(restraints)
        self.add(restraints)
        for each in restraints:
            if isinstance(each, Memory):
                self._tell_blocked(each.reason)
            elif channel not in self._stopped:
                self._stopped[channel] = None
                channel.request(spec.ChannelFlow(active=False))

    def relieve(self) -> None:
        """Let publishers go on if there is room again."""
        if not self:
            return
        self.drop()
        if self._told and not any(isinstance(each, Memory) for each in self):
            self._told = False
            self._connection.send_method(0, spec.ConnectionUnblocked())
        if not self:
            stopped, self._stopped = self._stopped, {}
            for channel in stopped:
                if channel.state is ChannelState.OPEN:
                    channel.request(spec.ChannelFlow(active=True))

    def _tell_blocked(self, reason: str) -> None:
        if not self._told and self._connection.knows(spec.Capability.CONNECTION_BLOCKED):
            self._told = True
            self._connection.send_method(0, spec.ConnectionBlocked(reason))
