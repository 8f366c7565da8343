"""A broker that only replays: ready-made messages at the full speed of a socket, framed as qpidd frames them.

It runs in a process of its own. Every queue whose name :func:`queue_name` made has so many messages; each message is
a command frame, a header frame and a body frame, with the delivery-properties that qpidd writes (the exchange is among
them). The bytes are encoded once per subscription, before the first is sent, and go out in writes as large as the
socket takes, so that receiving is what limits the rate. Credit is respected, in messages and in bytes of frames, and
messages that were not accepted go back when their session ends. The commands that a reader sends are answered as qpidd
answers them; what it does not know, it completes.
"""

from __future__ import annotations

import math
import select
import socket
import subprocess
import sys
import uuid
from collections import deque
from typing import TYPE_CHECKING, Self

from amqp_core.connection_states import Ended, Opened, Role
from amqp_core.v0_10 import spec
from amqp_core.v0_10.connection import Connection
from amqp_core.v0_10.connection_events import CommandReceived, ControlReceived
from amqp_core.v0_10.session import Session
from tests.bench.preload import Frames

if TYPE_CHECKING:
    from amqp_core.v0_10.connection_events import Event

HOST = "127.0.0.1"
PRODUCT = "qpid-cpp (replayed by tests.bench)"
EXCHANGE = "bench.ticks"
BODY_BYTES = 256
ENCODED_MESSAGES = 50_000
"""Different messages; after so many they begin again."""
HEARTBEAT_S = 120
_BLOCK = 1000
_READ_BYTES = 1 << 16
_WRITE_BYTES = 1 << 20
_START_S = 30.0
_INFINITE = 0xFFFFFFFF
_PREFIX = "replay-"


def queue_name(count: int) -> str:
    """A name that no queue had before, of a queue with ``count`` messages."""
    return f"{_PREFIX}{count}-{uuid.uuid4().hex[:8]}"


class ReplayBroker:
    """Starts the process and ends it; a context manager, and a broker as tests know them."""

    username = "guest"
    password = "guest"

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._port = 0

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], _START_S)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            self.__exit__()
            raise RuntimeError(f"the replaying broker did not start within {_START_S:g} s")
        self._port = int(line)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    stream.close()

    @property
    def pid(self) -> int:
        """Of the process, for its processor time."""
        assert self._process is not None
        return self._process.pid

    def url(self, vhost: str = "default") -> str:
        """Where it listens."""
        return f"amqp://{HOST}:{self._port}/{vhost}"

    def log(self) -> str:
        """It has none."""
        return ""


class _Queue:
    """Messages that are left, and who consumes them."""

    def __init__(self, name: str) -> None:
        digits = name.removeprefix(_PREFIX).partition("-")[0]
        self.left = int(digits) if name.startswith(_PREFIX) and digits.isdigit() else 0
        self.consumers = 0


class _Link:
    """One client: its connection, its session and at most one subscription."""

    def __init__(self, sock: socket.socket, queues: dict[str, _Queue]) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.connection = Connection(
            Role.SERVER,
            mechanisms=("PLAIN",),
            server_properties={"product": PRODUCT, "version": "1.39.0"},
            heartbeat=HEARTBEAT_S,
        )
        self.session = Session(self.connection, 0, b"")
        self.over = False
        self._queues = queues
        self._queue: _Queue | None = None
        self._credit = 0
        self._byte_credit = 0.0
        self._unsettled = 0
        self._frames = memoryview(b"")
        self._size = 1
        self._next = 0
        self._pending: deque[memoryview] = deque()

    @property
    def wants_to_write(self) -> bool:
        """Whether something waits for room in the socket."""
        return bool(self._pending)

    def read(self) -> None:
        """Take what has arrived and do it."""
        try:
            data = self.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.over = True
            return
        for event in self.connection.receive_data(data):
            self._handle(event)
        self._send()

    def write(self) -> None:
        """Send what the socket takes."""
        pending = self._pending
        try:
            while pending:
                view = pending[0]
                sent = self.sock.send(view[:_WRITE_BYTES])
                if sent < len(view):
                    pending[0] = view[sent:]
                    continue
                pending.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self.over = True

    def close(self) -> None:
        """Take back the messages that were not accepted."""
        self.sock.close()
        if self._queue is not None:
            self._queue.left += self._unsettled
            self._queue.consumers -= 1
            self._queue = None

    # ------------------------------------------------------------------------------------------------------- commands
    def _handle(self, event: Event) -> None:
        if isinstance(event, Ended):
            self.over = True
        elif isinstance(event, ControlReceived):
            self.session.receive_control(event.control)
        elif isinstance(event, CommandReceived):
            self._command(event)
        else:
            assert isinstance(event, Opened)

    def _command(self, event: CommandReceived) -> None:
        command, session = event.command, self.session
        if isinstance(command, spec.MessageSubscribe):
            self._subscribe(command)
        elif isinstance(command, spec.MessageFlow):
            value = command.value or 0
            if command.unit == spec.MessageCreditUnit.MESSAGE:
                self._credit += value
            else:
                self._byte_credit += math.inf if value == _INFINITE else value
        elif isinstance(command, spec.MessageFlush | spec.MessageStop | spec.MessageCancel):
            if isinstance(command, spec.MessageFlush):
                self._transfer()
            self._credit, self._byte_credit = 0, 0.0
        elif isinstance(command, spec.MessageAccept):
            self._unsettled -= sum(high - low + 1 for low, high in command.transfers or [])
        elif isinstance(command, spec.QueueQuery):
            self._result(session.received_next, self._found(command.queue or ""))
        # After the transfers that it allowed, as a broker that works through its commands in order.
        self._send()
        session.receive_command(command, sync=event.sync)

    def _subscribe(self, command: spec.MessageSubscribe) -> None:
        name = command.queue or ""
        self._queue = self._queues.setdefault(name, _Queue(name))
        self._queue.consumers += 1
        messages = min(max(self._queue.left, 1), ENCODED_MESSAGES)
        blocks = Frames(
            name,
            body_bytes=BODY_BYTES,
            accept_mode=spec.MessageAcceptMode(command.accept_mode or 0),
            stamped=True,
            destination=command.destination or "",
            exchange=EXCHANGE,
        )
        encoded = b"".join(blocks.block(first, min(_BLOCK, messages - first)) for first in range(0, messages, _BLOCK))
        self._size = len(encoded) // messages
        self._frames = memoryview(encoded)

    def _found(self, name: str) -> spec.QueueQueryResult:
        queue = self._queues.setdefault(name, _Queue(name))
        return spec.QueueQueryResult(
            queue=name, durable=False, message_count=queue.left, subscriber_count=queue.consumers
        )

    def _result(self, command_id: int, value: spec.QueueQueryResult) -> None:
        self.session.send(spec.ExecutionResult(command_id=command_id & 0xFFFFFFFF, value=value))

    # ----------------------------------------------------------------------------------------------------------- out
    def _send(self) -> None:
        """Queue what the state machines want to say, and behind it the messages that there is credit for."""
        data = self.connection.data_to_send()
        if data:
            self._pending.append(memoryview(data))
        self._transfer()

    def _transfer(self) -> None:
        queue = self._queue
        if queue is None:
            return
        count = min(self._credit, queue.left)
        if count * self._size > self._byte_credit:
            count = int(self._byte_credit // self._size)
        if count:
            self._credit -= count
            self._byte_credit -= count * self._size
            queue.left -= count
            self._unsettled += count
            self.session.number(count)
        while count:
            begin = self._next * self._size
            frames = self._frames[begin : begin + count * self._size]
            self._pending.append(frames)
            sent = len(frames) // self._size
            count -= sent
            self._next += sent
            if self._next * self._size == len(self._frames):
                self._next = 0


def main() -> None:
    """Serve until standard input is closed, that is, until the process that started this one has ended."""
    listener = socket.create_server((HOST, 0))
    print(listener.getsockname()[1], flush=True)
    queues: dict[str, _Queue] = {}
    links: dict[int, _Link] = {}
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    poll.register(sys.stdin, select.POLLIN)
    while True:
        for fd, events in poll.poll():
            if fd == sys.stdin.fileno():
                return
            if fd == listener.fileno():
                sock, _ = listener.accept()
                links[sock.fileno()] = _Link(sock, queues)
                poll.register(sock, select.POLLIN)
                continue
            link = links[fd]
            if events & ~select.POLLOUT:
                link.read()
            link.write()
            if link.over:
                poll.unregister(fd)
                links.pop(fd).close()
            else:
                poll.modify(fd, select.POLLIN | (select.POLLOUT if link.wants_to_write else 0))


if __name__ == "__main__":
    main()
