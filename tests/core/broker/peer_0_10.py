"""A client of 0-10 without sockets: the client role of the state machines, joined to a connection of the broker."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar

from amqp_core.address import ConnectOptions
from amqp_core.broker.logins import Logins
from amqp_core.broker.model.memory import Memory
from amqp_core.broker.model.virtual_host import VirtualHost
from amqp_core.broker.v0_10.connection import ServerConnection
from amqp_core.broker.v0_10.names import SessionNames
from amqp_core.connection_states import Ended, Opened, Role
from amqp_core.sasl import SaslLogin
from amqp_core.sequence_numbers import wire_ranges
from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import decode_header, encode_header
from amqp_core.v0_10.connection import Connection
from amqp_core.v0_10.connection_events import CommandReceived, ControlReceived, Event
from amqp_core.v0_10.session import Session

if TYPE_CHECKING:
    from amqp_core.errors import AmqpError

NONE, EXPLICIT = spec.MessageAcceptMode.NONE, spec.MessageAcceptMode.EXPLICIT
BROWSE = spec.MessageAcquireMode.NOT_ACQUIRED
_T = TypeVar("_T")


class World:
    """A broker without sockets. ``now`` is its time, in seconds since 1970."""

    def __init__(self, memory_limit: float = math.inf) -> None:
        self.now = 1_700_000_000.0
        self.memory = Memory(memory_limit)
        self.host = VirtualHost("/", self.memory)
        self.hosts = {"/": self.host, "other": VirtualHost("other", self.memory)}
        self.names = SessionNames()
        self.logins = Logins({"guest": "guest", "carol": "secret"})
        self.peers: list[Peer] = []

    def connect(self, username: str = "guest", password: str = "guest", virtual_host: str = "") -> Peer:
        """A client that has logged in, if it may."""
        peer = Peer(self, username, password, virtual_host)
        self.peers.append(peer)
        peer.pump()
        return peer


class Peer:
    """One client. Each call is carried to the broker at once, and its answers come back.

    Attributes:
        transfers: received message.transfer, with their headers and bodies.
        with_body: whether each of them has a body segment.
        commands: all other received commands.
        controls: received controls of sessions.
        reading: whether bytes of the broker are taken.
    """

    def __init__(self, world: World, username: str, password: str, virtual_host: str, **settings: Any) -> None:
        self.world = world
        self.server = ServerConnection(
            hosts=world.hosts,
            logins=world.logins,
            names=world.names,
            clock=lambda: world.now,
            wake=lambda: None,
            **settings,
        )
        options = ConnectOptions(hosts=(("x", 1),), username=username, password=password)
        login = SaslLogin(options, loopback=True)
        self.protocol = Connection(Role.CLIENT, login=login, virtual_host=virtual_host, heartbeat=7)
        self.sessions: dict[int, Session] = {}
        self.with_body: list[bool] = []
        self.transfers: list[tuple[int, spec.DeliveryProperties, spec.MessageProperties, bytes]] = []
        self.commands: list[spec.Command] = []
        self.controls: list[spec.Control] = []
        self.opened = False
        self.reading = True
        self.ended: Ended | None = None

    @property
    def error(self) -> AmqpError | None:
        """Why the connection has ended."""
        return None if self.ended is None else self.ended.error

    @property
    def session(self) -> Session:
        """The session of channel 0."""
        return self.sessions[0]

    @property
    def bodies(self) -> list[bytes]:
        """Bodies of the received messages."""
        return [body for *_, body in self.transfers]

    def pump(self) -> None:
        """Carry bytes until both sides are silent."""
        moved = True
        while moved:
            moved = self._pump_out()
            for host in self.world.hosts.values():  # as the server does: each round is a turn
                moved = moved or host.effort.has_unfinished
                host.effort.next_turn(self.world.now)
            for peer in self.world.peers:
                moved = peer._pump_in() or moved

    def _pump_out(self) -> bool:
        data = self.protocol.data_to_send()
        if data and not self.server.is_over:
            self.server.receive(data)
        return bool(data)

    def _pump_in(self) -> bool:
        if not self.reading:
            return False
        data = self.server.take_bytes()
        for event in self.protocol.receive_data(data):
            self._handle(event)
        self.server.written()
        return bool(data) or self._pump_out()

    def _handle(self, event: Event) -> None:
        if isinstance(event, Opened):
            self.opened = True
        elif isinstance(event, Ended):
            self.ended = event
        elif isinstance(event, ControlReceived):
            self.controls.append(event.control)
            if event.channel in self.sessions:
                self.sessions[event.channel].receive_control(event.control)
        elif isinstance(event, CommandReceived):
            command_id = self.sessions[event.channel].receive_command(event.command, sync=event.sync)
            if isinstance(event.command, spec.MessageTransfer):
                self.with_body.append(event.body is not None)
                delivery, properties, _ = decode_header(event.header or b"")
                self.transfers.append(
                    (
                        command_id,
                        delivery or spec.DeliveryProperties(),
                        properties or spec.MessageProperties(),
                        event.body or b"",
                    )
                )
            else:
                self.commands.append(event.command)

    def attach(self, channel: int = 0, name: bytes = b"s", *, force: bool = False) -> Session:
        """Attach a session."""
        session = self.sessions[channel] = Session(self.protocol, channel, name)
        session.attach(force=force)
        self.pump()
        return session

    def call(self, command: spec.Command, channel: int = 0) -> int:
        """Send a command with the sync bit; return its id."""
        command_id = self.sessions[channel].send(command, sync=True, result=True)
        self.pump()
        return command_id

    def ask(self, command: spec.Command, kind: type[_T]) -> _T:
        """The result of a command."""
        result = self.session.take_result(self.call(command))
        assert isinstance(result, kind)
        return result

    def publish(self, body: bytes, key: str = "q", exchange: str = "", *, accept_mode: int = 0, **delivery: Any) -> int:
        """Publish a message; return its command id."""
        properties = delivery.pop("properties", None)
        header = encode_header(spec.DeliveryProperties(routing_key=key, **delivery), properties)
        transfer = spec.MessageTransfer(destination=exchange, accept_mode=accept_mode, acquire_mode=0)
        command_id = self.session.send(transfer, header=header, body=body, sync=True)
        self.pump()
        return command_id

    def subscribe(
        self, queue: str = "q", destination: str = "d", *, accept_mode: int = 0, acquire_mode: int = 0, **more: Any
    ) -> None:
        """Subscribe, without credit."""
        self.call(
            spec.MessageSubscribe(
                queue=queue, destination=destination, accept_mode=accept_mode, acquire_mode=acquire_mode, **more
            )
        )

    def flow(self, messages: int | None = None, nbytes: int | None = None, destination: str = "d") -> None:
        """Grant credit; ``None``: infinite."""
        for unit, value in ((spec.MessageCreditUnit.BYTE, nbytes), (spec.MessageCreditUnit.MESSAGE, messages)):
            self.call(spec.MessageFlow(destination=destination, unit=unit, value=value))

    def received(self, kind: type[_T]) -> list[_T]:
        """All received commands and controls of a kind."""
        return [each for each in (*self.commands, *self.controls) if isinstance(each, kind)]


def code_of(peer: Peer) -> int | None:
    """The code of the exception, if there was one."""
    return next((each.error_code for each in peer.received(spec.ExecutionException)), None)


def ids(peer: Peer, *places: int) -> list[tuple[int, int]]:
    """Wire ranges of the received messages at these places; without any: of all."""
    transfers = [peer.transfers[place] for place in places] if places else peer.transfers
    return wire_ranges((command_id, command_id) for command_id, *_ in transfers)


def stalled(peer: Peer) -> bool:
    """Whether the broker reads nothing more of a client."""
    return peer.server.is_stalled


def waiting(peer: Peer, queue: str = "q") -> list[bytes]:
    """Bodies that wait in a queue, in order."""
    watcher = peer.world.connect()
    watcher.attach(name=b"watcher")
    watcher.subscribe(queue, accept_mode=NONE, acquire_mode=BROWSE)
    watcher.flow(1_000_000)
    watcher.protocol.close()
    watcher.pump()
    return watcher.bodies
