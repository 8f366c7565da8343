"""A client and a broker on a socket pair in one thread: the broker acts whenever the client waits.

A random generator decides its actions, so every run can be repeated, and faults strike at any point of a conversation.
"""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Self

from amqp_core.connection_states import Ended, Role
from amqp_core.sequence_numbers import RangeSet, wire_ranges
from amqp_core.transport import Transport, monotonic
from amqp_core.v0_10 import spec
from amqp_core.v0_10.client import Client
from amqp_core.v0_10.connection import Connection
from amqp_core.v0_10.connection_events import CommandReceived, ControlReceived
from amqp_core.v0_10.driver import Driver
from amqp_core.v0_10.session import Session
from tests.support.machines import Login
from tests.support.runs import number_of

if TYPE_CHECKING:
    import random

    from amqp_core.v0_10.connection_events import Event

_NO_LIMIT = 0x7FFFFFFF


class _SteppedTransport(Transport):
    """A transport that lets the broker act while it waits."""

    broker: SimulatedBroker

    def wait(self, timeout: float, *, reading: bool = True) -> bool:
        del timeout
        self.broker.step()
        return super().wait(0.0, reading=reading)


class SimulatedBroker:
    """The broker: reads a little, completes some in any order, rejects some, stops and resumes the publisher.

    Args:
        chance: the random generator of all choices.
        first_id: the id of the client's first transfer.
        lost_after: bytes of the session after which it closes the connection, ``None`` for never.
        lies: before closing the connection it completes transfers that it discards, as Broker-J does.
        qpidd: whether it identifies itself as qpidd.
        rejects: the share of transfers that it rejects.

    Attributes:
        taken: the number of each transfer received, by command id, in order of arrival.
        completed: the numbers of transfers reported as completed.
        rejected: the numbers of transfers reported as rejected.
        most_in_flight: maximum number of transfers, and of bytes, received and not reported as completed.
    """

    def __init__(
        self,
        chance: random.Random,
        *,
        first_id: int = 0,
        lost_after: int | None = None,
        lies: bool = False,
        qpidd: bool = False,
        rejects: float = 0.1,
    ) -> None:
        self.chance = chance
        self.first_id = first_id
        self.taken: dict[int, int] = {}
        self.completed: set[int] = set()
        self.rejected: set[int] = set()
        self.most_in_flight = (0, 0)
        self._sizes: dict[int, int] = {}
        self._other: list[int] = []
        self._open: list[int] = []
        self._rejects = rejects
        self._stopped = False
        self._lies = lies
        self._closing = False
        self._lost_after: int | None = None
        self._read = 0
        self._sock, theirs = socket.socketpair()
        self._sock.setblocking(False)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)  # so that it is full now and then
        transport = _SteppedTransport(theirs, "simulated:0")
        transport.broker = self
        self.connection = Connection(Role.SERVER, server_properties={"product": "qpid-cpp"} if qpidd else {})
        self.session = Session(self.connection, 0, b"")
        driver = Driver(transport, Connection(Role.CLIENT, login=Login(), scan_transfers=True), call_timeout_s=60)
        driver._open(monotonic() + 60)
        self.client = Client(driver)
        driver.session.first_id = driver.session.next_id = first_id
        driver.session._command_point()
        self._lost_after = lost_after

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.abort()
        self._sock.close()

    def step(self) -> None:
        """Perform one random action."""
        if self._sock.fileno() < 0:
            return
        if self._closing:
            self.connection.send_control(0, spec.ConnectionClose(reply_code=320, reply_text="forced"))
            self._sock.sendall(self.connection.data_to_send())
            self._sock.close()
            return
        with contextlib.suppress(BlockingIOError):
            limit = 1 << 16 if self._lost_after is None else max(1, min(1 << 16, self._lost_after - self._read))
            data = self._sock.recv(self.chance.randint(1, limit))
            self._read += len(data) if self._lost_after is not None else 0
            self._closing = self._lies and self._lost_after is not None and self._read >= self._lost_after
            for event in self.connection.receive_data(data):
                self._handle(event)
        if self.session.state.name == "ATTACHED":
            self._speak()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the client has given up
            self._sock.sendall(self.connection.data_to_send())
        if self._lost_after is not None and self._read >= self._lost_after and not self._closing:
            self._sock.close()

    def _handle(self, event: Event) -> None:
        if isinstance(event, ControlReceived):
            self.session.receive_control(event.control)
        elif isinstance(event, CommandReceived):
            command_id = self.session.received_next
            self.session.received_next += 1
            if isinstance(event.command, spec.MessageTransfer) and not self._closing:
                self.taken[command_id] = number_of(event.body)
                self._sizes[command_id] = len(event.body or b"")
                self._open.append(command_id)
                nbytes = sum(self._sizes[one] for one in self._open)
                most = self.most_in_flight
                self.most_in_flight = max(most[0], len(self._open)), max(most[1], nbytes)
            else:
                self._other.append(command_id)
        else:
            assert not isinstance(event, Ended) or event.error is None or "200" in str(event.error), event

    def _speak(self) -> None:
        if self._closing:
            received = RangeSet([(self.first_id, self.session.received_next - 1)]).ranges()
            self.connection.send_control(0, spec.SessionCompleted(commands=wire_ranges(received)))
            return
        if self.chance.random() < 0.3:
            done = [one for one in self._open if self.chance.random() < 0.7]
            self._open = [one for one in self._open if one not in set(done)]
            for one in done:
                if self.chance.random() < self._rejects:
                    self.rejected.add(self.taken[one])
                    reject = spec.MessageReject(transfers=wire_ranges([(one, one)]), code=1, text="no")
                    self.session.send(reject)
            self.completed.update(self.taken[one] for one in done)
            if not self._open:
                done, self._other = done + self._other, []
            ranges = RangeSet((one, one) for one in done).ranges()
            if ranges:
                self.connection.send_control(0, spec.SessionCompleted(commands=wire_ranges(ranges)))
        if not self._stopped and self.chance.random() < 0.05:
            self._stopped = True
            self.session.send(spec.MessageStop(destination=""))
        elif self._stopped and self.chance.random() < 0.3:
            credit = self.chance.choice([1, 3, _NO_LIMIT])
            self._stopped = credit != _NO_LIMIT
            self.session.send(spec.MessageFlow(destination="", unit=0, value=credit))
