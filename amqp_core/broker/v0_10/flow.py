"""Publishers that are stopped over 0-10: message.stop and message.flow to the destination "", as Broker-J sends them.

The session is still read, so that its accepts arrive. A client that publishes on regardless is not read any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqp_core.broker.model.memory import MESSAGE_BYTES
from amqp_core.broker.restraints import Restraints
from amqp_core.v0_10 import spec
from amqp_core.v0_10.session import SessionState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from amqp_core.broker.model.memory import Restraint
    from amqp_core.v0_10.session import Session

MOST_BEYOND: Final = 16 << 20
"""Bytes that the broker takes from a client after message.stop, which the client may have sent before it arrived. Then
the broker does not read from the client until it lets it go on.

Each message counts with the memory that it takes, as for the memory limit.
"""
# Clients read it as a signed number, and as no limit.
_NO_LIMIT: Final = 0x7FFFFFFF


class ProducerFlow:
    """What the publisher of one session waits for. Not thread-safe.

    Args:
        pull: called when the client does not stop.

    Attributes:
        restraints: what has no room for its messages.
    """

    def __init__(self, session: Session, pull: Callable[[], None]) -> None:
        self._session = session
        self._pull = pull
        self.restraints = Restraints()
        self._beyond = 0

    @property
    def is_stopped(self) -> bool:
        """Whether the client was told to stop."""
        return bool(self.restraints)

    def stop(self, restraints: Iterable[Restraint]) -> None:
        """The session has published what has no room for more."""
        if not self.restraints:
            self._beyond = 0
            self._session.send(spec.MessageSetFlowMode(destination="", flow_mode=spec.MessageFlowMode.CREDIT))
            self._session.send(spec.MessageStop(destination=""))
        self.restraints.add(restraints)

    def received(self, size: int) -> None:
        """A message of so many bytes was published."""
        if self.restraints:
            self._beyond += size + MESSAGE_BYTES
            if self._beyond > MOST_BEYOND:
                self._pull()

    def relieve(self) -> None:
        """Let the publisher go on if there is room again."""
        if not self.restraints:
            return
        self.restraints.drop()
        if not self.restraints and self._session.state is SessionState.ATTACHED:
            unit = spec.MessageCreditUnit.MESSAGE
            self._session.send(spec.MessageFlow(destination="", unit=unit, value=_NO_LIMIT))
