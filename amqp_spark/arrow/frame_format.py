"""What the encoder has to know about the connection: the protocol and the limits of its frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amqp_core.api import Client, Publisher


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameFormat:
    """Form of the frames that one connection sends. Immutable, hence thread-safe.

    Attributes:
        protocol: ``0-10``, ``0-9-1`` or ``0-9``, see :attr:`amqp_core.api.Client.protocol`.
        max_frame_size: bytes of the largest frame that the broker accepts.
        accept_mode: 0-10: accept mode of every transfer; 0 with other protocols.
        expiration_is_absolute: see :class:`amqp_core.api.Capabilities`.
    """

    protocol: str = "0-10"
    max_frame_size: int
    accept_mode: int = 0
    expiration_is_absolute: bool = False

    @classmethod
    def of(cls, client: Client, publisher: Publisher) -> FrameFormat:
        """The format for a connection and its publisher."""
        return cls(
            protocol=client.protocol,
            max_frame_size=publisher.max_frame_size,
            accept_mode=publisher.accept_mode,
            expiration_is_absolute=client.capabilities.expiration_is_absolute,
        )

    def suits(self, other: FrameFormat) -> bool:
        """Whether frames of this format can be sent on a connection that has the ``other`` one."""
        return (
            self.protocol == other.protocol
            and self.max_frame_size <= other.max_frame_size
            and self.accept_mode == other.accept_mode
            and self.expiration_is_absolute == other.expiration_is_absolute
        )
