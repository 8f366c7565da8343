"""Transitions and events of the connection state machine (:mod:`amqp_core.v0_9.connection`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from amqp_core.connection_states import Ended, Opened, Redirected, Role, State
from amqp_core.v0_9 import spec

if TYPE_CHECKING:
    from amqp_core.blocks import Block
    from amqp_core.v0_9.framing import Frame


_S = State
# (state, method received) -> next state. A method that is not listed violates the protocol in that state.
CLIENT_TRANSITIONS: dict[tuple[State, type], State] = {
    (_S.START, spec.ConnectionStart): _S.SECURE_OR_TUNE,
    (_S.SECURE_OR_TUNE, spec.ConnectionSecure): _S.SECURE_OR_TUNE,
    (_S.SECURE_OR_TUNE, spec.ConnectionTune): _S.OPEN_OK,
    (_S.OPEN_OK, spec.ConnectionOpenOk): _S.OPEN,
    (_S.OPEN_OK, spec.ConnectionRedirect): _S.CLOSED,
    (_S.OPEN, spec.ConnectionBlocked): _S.OPEN,
    (_S.OPEN, spec.ConnectionUnblocked): _S.OPEN,
    (_S.OPEN, spec.ConnectionUpdateSecretOk): _S.OPEN,
    (_S.CLOSE_OK, spec.ConnectionCloseOk): _S.CLOSED,
}
SERVER_TRANSITIONS: dict[tuple[State, type], State] = {
    (_S.START_OK, spec.ConnectionStartOk): _S.SECURE_OK,
    (_S.SECURE_OK, spec.ConnectionSecureOk): _S.SECURE_OK,
    (_S.TUNE_OK, spec.ConnectionTuneOk): _S.OPEN_FROM_CLIENT,
    (_S.OPEN_FROM_CLIENT, spec.ConnectionOpen): _S.OPEN,
    (_S.OPEN, spec.ConnectionUpdateSecret): _S.OPEN,
    (_S.CLOSE_OK, spec.ConnectionCloseOk): _S.CLOSED,
}
TRANSITIONS = {Role.CLIENT: CLIENT_TRANSITIONS, Role.SERVER: SERVER_TRANSITIONS}


@dataclass(frozen=True, slots=True)
class FrameReceived:
    """A frame of another channel than 0 arrived. Immutable: any thread may use it."""

    frame: Frame


@dataclass(frozen=True, slots=True)
class DeliveriesReceived:
    """A run of basic.deliver arrived on the consuming channel, as raw frames.

    Not thread-safe until the owner of the channel has numbered the block.
    """

    block: Block


@dataclass(frozen=True, slots=True)
class DeliveryBegun:
    """The first part of a large delivery arrived on the consuming channel: its ``frames``, the last one incomplete.

    Immutable: any thread may use it.
    """

    frames: bytes


@dataclass(frozen=True, slots=True)
class Blocked:
    """The broker reads no more from this connection (connection.blocked); ``None``: it reads again.

    Immutable: any thread may use it.
    """

    reason: str | None


@dataclass(frozen=True, slots=True)
class SecretUpdated:
    """The broker has taken the new secret (connection.update-secret-ok). Immutable: any thread may use it."""


Event = Opened | Redirected | Ended | FrameReceived | DeliveriesReceived | DeliveryBegun | Blocked | SecretUpdated
