"""Connections without sockets: made, pumped against each other, brought into any state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_core.connection_states import Ended, Role, State
from amqp_core.errors import (
    AuthenticationFailed,
)
from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import decode_control, encode_command, encode_control
from amqp_core.v0_10.connection import Connection
from amqp_core.v0_10.framing import PROTOCOL_HEADER, encode_control_frame
from tests.support import wire

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqp_core.v0_10.connection_events import Event


class Login:
    """Answers every challenge; can be set to reject the server's proof."""

    def __init__(self, *, believes: bool = True) -> None:
        self.offered: Sequence[str] = ()
        self.challenges: list[bytes] = []
        self.believes = believes

    def choose(self, mechanisms: Sequence[str]) -> tuple[str, bytes | None]:
        self.offered = mechanisms
        if "ANONYMOUS" not in mechanisms:
            raise AuthenticationFailed("nothing suits")
        return "ANONYMOUS", b""

    def respond(self, challenge: bytes) -> bytes:
        self.challenges.append(challenge)
        return b"re:" + challenge

    def succeeded(self) -> None:
        if not self.believes:
            raise AuthenticationFailed("the server has proven nothing")

    def shown(self, text: str) -> str:
        return text


def client(**options: object) -> Connection:
    settings: dict[str, object] = {"login": Login(), "virtual_host": "vh", "scan_transfers": True}
    return Connection(Role.CLIENT, **settings | options)  # type: ignore[arg-type]


def server(**options: object) -> Connection:
    return Connection(Role.SERVER, **options)  # type: ignore[arg-type]


def pump(a: Connection, b: Connection) -> tuple[list[Event], list[Event]]:
    """Carry bytes both ways until none are left; return the events of each side."""
    seen: tuple[list[Event], list[Event]] = ([], [])
    while True:
        to_b, to_a = a.data_to_send(), b.data_to_send()
        if not to_a and not to_b:
            return seen
        seen[1].extend(b.receive_data(to_b))
        seen[0].extend(a.receive_data(to_a))


def control(value: spec.Control, channel: int = 0) -> bytes:
    return encode_control_frame(channel, encode_control(value))


def sent(connection: Connection) -> list[spec.Control]:
    """The pending controls of a connection (and, before them, perhaps the protocol header)."""
    data = connection.data_to_send().removeprefix(PROTOCOL_HEADER)
    controls = []
    while data:
        size = int.from_bytes(data[2:4])
        controls.append(decode_control(data[12:size]))
        data = data[size:]
    return controls


def at(role: Role, state: State) -> Connection:
    """A connection of a role in a state, reached by input from a peer."""
    connection = (
        client() if role is Role.CLIENT else server(authenticate=lambda _, response: None if response else b"?")
    )
    steps: list[tuple[State, bytes]] = (
        [
            (State.HEADER, PROTOCOL_HEADER),
            (State.START, control(spec.ConnectionStart(mechanisms=["ANONYMOUS"], locales=["en_US"]))),
            (State.SECURE_OR_TUNE, control(spec.ConnectionTune(channel_max=9, max_frame_size=65535))),
            (State.OPEN_OK, control(spec.ConnectionOpenOk())),
        ]
        if role is Role.CLIENT
        else [
            (State.HEADER, PROTOCOL_HEADER),
            (State.START_OK, control(spec.ConnectionStartOk(mechanism="ANONYMOUS"))),
            (State.SECURE_OK, control(spec.ConnectionSecureOk(response=b"!"))),
            (State.TUNE_OK, control(spec.ConnectionTuneOk(channel_max=9, max_frame_size=65535))),
            (State.OPEN_FROM_CLIENT, control(spec.ConnectionOpen(virtual_host="vh"))),
        ]
    )
    for before, data in steps:
        if connection.state is state:
            break
        assert connection.state is before
        connection.receive_data(data)
    if state in (State.CLOSE_OK, State.CLOSED):
        connection.close()
    if state is State.CLOSED:
        connection.receive_data(control(spec.ConnectionCloseOk()))
    connection.data_to_send()
    assert connection.state is state
    return connection


def error_of(events: Sequence[Event]) -> Exception | None:
    """The error of the last event, which ends the connection."""
    assert events, "nothing was seen"
    assert isinstance(events[-1], Ended)
    return events[-1].error


RESULT = wire.frame(0x0F, 1, encode_command(spec.ExecutionResult(7, spec.QueueQueryResult(queue="q"))))
HEARTBEAT = control(spec.ConnectionHeartbeat())
