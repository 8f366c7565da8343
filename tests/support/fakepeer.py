"""A scripted server on the loopback interface, for faults that a real broker cannot be made to show.

It is ``Connection(Role.SERVER)`` and ``Session`` of amqp_core itself, on a thread of its own, so that the client under
test is the real, blocking one::

    def script(peer: Peer) -> None:
        peer.open()
        peer.expect(spec.QueueQuery)
        peer.raw(b"garbage" * 10)

    with FakePeer(script) as server:
        client = server.connect()

Every wait has a deadline. An exception in a script fails the test when the ``with`` block ends, unless the block
raised.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from amqp_core.address import ConnectOptions
from amqp_core.connection_states import Ended, Opened, Role
from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import encode_command, encode_control, encode_header
from amqp_core.v0_10.client import Client
from amqp_core.v0_10.connection import Connection
from amqp_core.v0_10.connection_events import CommandReceived, CommandUnknown, ControlReceived, Event
from amqp_core.v0_10.framing import BODY, COMMAND, HEADER, encode_control_frame
from amqp_core.v0_10.session import Session

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator

    from amqp_core.api import Client as AnyClient
HOST = "127.0.0.1"
_DEADLINE_S = 60.0
_C = TypeVar("_C", bound=spec.Command)

QPIDD: dict[str, object] = {"product": "qpid-cpp", "version": "1.39.0", "qpid.federation_tag": "fake"}


class ClientGone(AssertionError):
    """The client closed the connection while the script waited for another event."""


class PeerSocket:
    """What both protocols' ends of a connection have: they write bytes, at once or together.

    Args:
        output: takes the pending output of the state machines.
    """

    def __init__(self, sock: socket.socket, output: Callable[[], bytes]) -> None:
        self.sock = sock
        self._output = output
        self._together = False

    def raw(self, data: bytes) -> None:
        """Send bytes unchanged; a closed connection is ignored."""
        with contextlib.suppress(OSError):
            self.sock.sendall(data)

    def silent(self) -> None:
        """Read without answering until the client closes the connection."""
        with contextlib.suppress(ConnectionError):
            while self.sock.recv(1 << 16):
                pass

    def flush(self) -> None:
        """Write the pending output of the state machines, unless it is being collected."""
        data = b"" if self._together else self._output()
        if data:
            self.raw(data)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Collect what the block sends, and write it at once: the client reads all of it or nothing."""
        self._together = True
        yield
        self._together = False
        self.flush()


class Peer(PeerSocket):
    """The server's end of one connection.

    Attributes:
        completing: whether commands are completed as they arrive (at once if their sync bit asks for it), and
            session.flush is answered.
        answers: results by the type of the command, given before it is completed.
        hooks: called with a command of that type before it is completed.
        watch: called with every command received and its body.
        commands: every command received, with its id, in order.
        headers: the header segment of each of them; ``None``: it had none.
        controls: every control of the session received, in order.
        ended: the event that ended the connection, once it has.
        redirect_to: answer connection.open with a redirect to this.
    """

    def __init__(self, sock: socket.socket, settings: dict[str, Any]) -> None:
        first_id = settings.pop("first_id", 0)
        self.connection = Connection(Role.SERVER, **settings)
        super().__init__(sock, self.connection.data_to_send)
        self.session = Session(self.connection, 0, b"", first_id=first_id)
        self.completing = True
        self.answers: dict[type, Callable[[Any], object]] = {}
        self.hooks: dict[type, Callable[[Any], object]] = {}
        self.watch: Callable[[spec.Command, bytes | None], object] = lambda _command, _body: None
        self.commands: list[tuple[int, spec.Command]] = []
        self.headers: list[bytes | None] = []
        self.controls: list[spec.Control] = []
        self.ended: Ended | None = None
        self.redirect_to: str | None = None
        self._opened = False
        self._unseen: deque[tuple[int, spec.Command]] = deque()
        self._lock = threading.Lock()

    # -------------------------------------------------------------------------------------------- usual operation
    def open(self) -> None:
        """Let the client log in, open the connection and attach its session."""
        self._until(lambda: self._opened and self.session.state.name == "ATTACHED", "session.attach")

    def subscribed(self) -> int:
        """Let the client log in, subscribe and grant credit; return the credit: no broker sends without it."""
        self.open()
        while (flow := self.expect(spec.MessageFlow)[1]).unit != spec.MessageCreditUnit.MESSAGE:
            pass
        return flow.value or 0

    def serve(self) -> None:
        """Complete and answer all commands until the client closes the connection."""
        self._until(lambda: self.ended is not None, "the end of the connection", gone_is_fine=True)

    def expect(self, kind: type[_C]) -> tuple[int, _C]:
        """Wait for the next command of a kind, skipping others; return its id and the command."""
        while True:
            self._until(lambda: bool(self._unseen), kind.NAME)
            command_id, command = self._unseen.popleft()
            if isinstance(command, kind):
                return command_id, cast("_C", command)

    def comes(self, kind: type[spec.Command], seconds: float) -> bool:
        """Whether a command of a kind has arrived or arrives within this many seconds; skips others."""
        deadline = time.monotonic() + seconds
        while True:
            while self._unseen:
                if isinstance(self._unseen.popleft()[1], kind):
                    return True
            if not self.hears(deadline - time.monotonic()):
                return False

    def hears(self, seconds: float) -> bool:
        """Whether any data arrives within this many seconds."""
        self.flush()
        self.sock.settimeout(max(0.001, seconds))
        try:
            data = self.sock.recv(1 << 16)
        except TimeoutError:
            return False
        finally:
            self.sock.settimeout(_DEADLINE_S)
        for event in self.connection.receive_data(data):
            self._handle(event)
        self.flush()
        return bool(data)

    def expect_control(self, kind: type[spec.Control]) -> spec.Control:
        """Wait until a control of a kind has arrived; return the latest."""
        self._until(lambda: any(isinstance(control, kind) for control in self.controls), kind.NAME)
        return [control for control in self.controls if isinstance(control, kind)][-1]

    def send(self, command: spec.Command, *, header: bytes | None = None, body: bytes | None = None) -> int:
        """Send a command, even one that lacks a required field."""
        command_id = self.session.number(1)
        content = [(kind, data) for kind, data in ((HEADER, header), (BODY, body)) if data is not None]
        self.connection.send_assembly(0, [(COMMAND, encode_command(command)), *content])
        self.flush()
        return command_id

    def transfer(self, *bodies: bytes, destination: str = "s1") -> None:
        """Send messages to a subscription."""
        for body in bodies:
            transfer = spec.MessageTransfer(destination=destination, accept_mode=0, acquire_mode=0)
            self.session.send(transfer, header=encode_header(spec.DeliveryProperties(), None), body=body or None)
        self.flush()

    def control(self, control: spec.Control, channel: int = 0) -> None:
        """Send a control, even one that lacks a required field."""
        self.flush()
        self.raw(encode_control_frame(channel, encode_control(control)))

    def exception(self, code: int, command_id: int | None, text: str = "told so") -> None:
        """End the session as brokers do: execution.exception, then session.detach."""
        self.send(spec.ExecutionException(error_code=code, command_id=command_id, description=text))
        self.control(spec.SessionDetach(name=self.session.name))

    # ---------------------------------------------------------------------------------------------- below the protocol

    def read_raw(self, size: int) -> bytes:
        """Wait for this many bytes."""
        data = b""
        while len(data) < size:
            part = self.sock.recv(size - len(data))
            if not part:
                raise ClientGone(f"the client closed the connection after {data!r}")
            data += part
        return data

    def reset(self) -> None:
        """Close with a TCP reset."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.sock.close()

    def _until(self, condition: Callable[[], bool], what: str, *, gone_is_fine: bool = False) -> None:
        deadline = time.monotonic() + _DEADLINE_S
        self.flush()
        while not condition():
            if not gone_is_fine and time.monotonic() > deadline:  # serve() continues as long as data arrives
                raise TimeoutError(f"the script waited {_DEADLINE_S:g} s for {what}")
            try:
                data = self.sock.recv(1 << 16)
            except ConnectionError:
                data = b""
            if not data:
                if gone_is_fine:
                    return
                raise ClientGone(f"the client closed the connection while the script waited for {what}")
            for event in self.connection.receive_data(data):
                self._handle(event)
            self.flush()

    def _handle(self, event: Event) -> None:
        if isinstance(event, Opened):
            self._opened = True
            if self.redirect_to is not None:
                self.connection.data_to_send()  # the pending open-ok
                self.connection.send_control(0, spec.ConnectionRedirect(host=self.redirect_to))
        elif isinstance(event, Ended):
            self.ended = event
        elif isinstance(event, ControlReceived):
            self.controls.append(event.control)
            if self.completing or not isinstance(event.control, spec.SessionFlush):
                self.session.receive_control(event.control)
        elif isinstance(event, CommandReceived):
            self._command(event)
        elif isinstance(event, CommandUnknown):
            self.session.refuse_command(event.code)

    def _command(self, event: CommandReceived) -> None:
        session, command = self.session, event.command
        command_id = session.received_next
        self.watch(command, event.body)
        hook = self.hooks.get(type(command))
        if hook is not None:
            hook(command)
        answer = self.answers.get(type(command))
        if answer is not None:
            session.send(spec.ExecutionResult(command_id=command_id & 0xFFFFFFFF, value=cast("Any", answer(command))))
        if self.completing:
            session.receive_command(command, sync=event.sync)
        else:
            session.received_next += 1
        self.commands.append((command_id, command))
        self.headers.append(event.header)
        self._unseen.append((command_id, command))


def serve(peer: Peer) -> None:
    """The script of a correct broker without messages."""
    peer.open()
    peer.serve()


class FakePeer:
    """Listens on a port; the n-th connection is served by the n-th script, further ones by the last.

    Args:
        scripts: functions that get the :class:`Peer`; the connection is closed when they return.
        context: server-side TLS context, for TLS.
        port: to listen on, 0 for a free one.
        settings: of ``Connection`` (mechanisms, authenticate, server_properties, heartbeat, max_frame_size) and
            ``first_id`` of the session.
    """

    def __init__(
        self, *scripts: Callable[[Any], None], context: ssl.SSLContext | None = None, port: int = 0, **settings: Any
    ) -> None:
        self._scripts = scripts
        self._settings = settings
        self._context = context
        self._listener = socket.create_server((HOST, port))
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []
        self._clients: list[AnyClient] = []
        self.connections = 0

    def connect(self, *, call_timeout_s: float = 30.0, **options: Any) -> Client:
        """Connect a client, which is closed at the end of the ``with`` block."""
        hosts = ((HOST, self.port),)
        options = {"hosts": hosts, "connect_timeout": 30.0, "heartbeat": 0} | options
        client = Client.connect(ConnectOptions(**cast("Any", options)), call_timeout_s=call_timeout_s)
        self._clients.append(client)
        return client

    def __enter__(self) -> Self:
        thread = threading.Thread(target=self._accept, name="fake-peer", daemon=True)
        self._threads.append(thread)
        thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for client in self._clients:
            client.abort()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in list(self._threads):
            thread.join(_DEADLINE_S)
            assert not thread.is_alive(), f"{thread.name} does not end"
        if self._errors and kind is None:
            raise self._errors[0]

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            script = self._scripts[min(self.connections, len(self._scripts) - 1)]
            self.connections += 1
            thread = threading.Thread(
                target=self._serve, args=(sock, script), name=f"fake-peer-{self.connections}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _run(self, script: Callable[[Any], None], sock: socket.socket) -> None:
        script(Peer(sock, dict(self._settings)))

    def _serve(self, sock: socket.socket, script: Callable[[Any], None]) -> None:
        try:
            with sock:
                sock.settimeout(_DEADLINE_S)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a reset would overtake buffered data
                if self._context is not None:
                    sock = self._context.wrap_socket(sock, server_side=True)
                with sock:
                    self._run(script, sock)
        except BaseException as error:  # noqa: BLE001 - raised again where the test can see it
            self._errors.append(error)
