"""Connections of 0-9-1 without sockets: made, pumped against each other, brought into any state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amqp_core.connection_states import Ended, Role, State
from amqp_core.errors import AuthenticationFailed
from amqp_core.protocol_header import HEADERS_0_9
from amqp_core.v0_9 import spec
from amqp_core.v0_9._codec import decode_method, encode_method
from amqp_core.v0_9.connection import Connection
from amqp_core.v0_9.framing import METHOD, encode_frame, parse_frame

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqp_core.v0_9.connection_events import Event

HEADER = HEADERS_0_9["0-9-1"]
START = spec.ConnectionStart(version_minor=9, mechanisms=b"PLAIN", locales=b"en_US")
TUNE = spec.ConnectionTune(channel_max=9, frame_max=131072, heartbeat=0)


class Login:
    """Answers every challenge; can be set to reject the server's proof."""

    def __init__(self, *, believes: bool = True) -> None:
        self.offered: Sequence[str] = ()
        self.challenges: list[bytes] = []
        self.believes = believes

    def choose(self, mechanisms: Sequence[str]) -> tuple[str, bytes | None]:
        self.offered = mechanisms
        if "PLAIN" not in mechanisms:
            raise AuthenticationFailed("nothing suits")
        return "PLAIN", b"\0u\0p"

    def respond(self, challenge: bytes) -> bytes:
        self.challenges.append(challenge)
        return b"re:" + challenge

    def succeeded(self) -> None:
        if not self.believes:
            raise AuthenticationFailed("the server has proven nothing")

    def shown(self, text: str) -> str:
        return text


def client(**options: Any) -> Connection:
    settings: dict[str, Any] = {"login": Login(), "virtual_host": "vh", "scan_deliveries": True}
    return Connection(Role.CLIENT, **settings | options)


def server(**options: Any) -> Connection:
    return Connection(Role.SERVER, **options)


def pump(a: Connection, b: Connection) -> tuple[list[Event], list[Event]]:
    """Carry bytes both ways until none are left; return the events of each side."""
    seen: tuple[list[Event], list[Event]] = ([], [])
    while True:
        to_b, to_a = a.data_to_send(), b.data_to_send()
        if not to_a and not to_b:
            return seen
        seen[1].extend(b.receive_data(to_b))
        seen[0].extend(a.receive_data(to_a))


def method(value: spec.Method, channel: int = 0) -> bytes:
    """The frame of a method."""
    return encode_frame(METHOD, channel, encode_method(value))


def sent(connection: Connection) -> list[spec.Method]:
    """The pending methods of a connection (and, before them, perhaps the protocol header)."""
    data = connection.data_to_send()
    for header in HEADERS_0_9.values():
        data = data.removeprefix(header)
    return methods(data)


def methods(data: bytes) -> list[spec.Method]:
    """The methods in these frames."""
    found, pos = [], 0
    while (parsed := parse_frame(data, pos, 1 << 32)) is not None:
        frame, pos = parsed
        if frame.type == METHOD:
            found.append(decode_method(frame.payload))
    assert pos == len(data)
    return found


def at(role: Role, state: State) -> Connection:
    """A connection of a role in a state, reached by input from a peer."""
    connection = (
        client() if role is Role.CLIENT else server(authenticate=lambda _, response: None if response == b"!" else b"?")
    )
    steps: list[tuple[State, bytes]] = (
        [
            (State.START, method(START)),
            (State.SECURE_OR_TUNE, method(TUNE)),
            (State.OPEN_OK, method(spec.ConnectionOpenOk())),
        ]
        if role is Role.CLIENT
        else [
            (State.HEADER, HEADER),
            (State.START_OK, method(spec.ConnectionStartOk(mechanism="PLAIN"))),
            (State.SECURE_OK, method(spec.ConnectionSecureOk(response=b"!"))),
            (State.TUNE_OK, method(spec.ConnectionTuneOk(channel_max=9, frame_max=131072))),
            (State.OPEN_FROM_CLIENT, method(spec.ConnectionOpen(virtual_host="vh"))),
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
        connection.receive_data(method(spec.ConnectionCloseOk()))
    connection.data_to_send()
    assert connection.state is state
    return connection


def error_of(events: Sequence[Event]) -> Exception | None:
    """The error of the last event, which ends the connection."""
    assert events, "nothing was seen"
    assert isinstance(events[-1], Ended)
    return events[-1].error
