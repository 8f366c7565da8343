"""The broker of the matrix: a Broker-J for each job, or one given by its URL and the command that starts it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from amqp_core.address import parse_url
from amqp_core.errors import AmqpError, AuthenticationFailed, ConnectionFailed, VirtualHostRefused
from tests.matrix.cases import BROKER, MEMORY_BROKER
from tests.matrix.servers import BROKER_J
from tests.support.brokerj import BrokerFailed
from tests.support.dial import address, dial
from tests.support.fixtures import Broker
from tests.support.process import die_with_us, wait_until

if TYPE_CHECKING:
    from tests.matrix.cases import Case
    from tests.matrix.servers import Server


class MortalBroker(Broker, Protocol):
    """A broker that can be started and killed."""

    @property
    def running(self) -> bool: ...

    def start(self) -> None: ...

    def kill9(self) -> None: ...

    def close(self) -> None: ...


class GivenBroker:
    """A broker at a URL. The URL names its only virtual host, where durable queues have to survive a kill.

    Args:
        base_url: of the broker and its virtual host.
        username, password: of a login that may declare queues.
        command: starts it in the foreground (``sh -c``); without one it runs already, and is never killed.
        timeout_s: seconds until a client can log in.
    """

    def __init__(
        self, base_url: str, username: str, password: str, command: str | None = None, *, timeout_s: float = 120.0
    ) -> None:
        self.username = username
        self.password = password
        self._base_url = base_url
        self._command = command
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self._log: Path | None = None

    def url(self, vhost: str = "default") -> str:
        """The URL that was given."""
        return self._base_url

    def log(self) -> str:
        """The end of the output of the command."""
        if self._log is None:
            return "(kept by whoever runs this broker)"
        return self._log.read_bytes()[-4000:].decode(errors="replace")

    @property
    def running(self) -> bool:
        """Whether the command runs; without a command the broker is assumed to run."""
        return self._command is None or (self._process is not None and self._process.poll() is None)

    def start(self) -> None:
        """Start the command, if there is one, and wait until a client can log in.

        Raises:
            AuthenticationFailed, VirtualHostRefused: the login, or the URL, is not for this broker.
            BrokerFailed: the command has ended, no broker answers in time, or a broker was running before.
        """
        if self._command is None:
            dial(self, heartbeat=0).close()
            return
        if self._answers():
            host, port = address(self)
            raise BrokerFailed(
                f"a broker answers at {host}:{port} before the command of --broker-command was run: stop it, since "
                "the matrix starts the broker itself"
            )
        if self._log is None:
            number, name = tempfile.mkstemp(prefix="amqp-spark-matrix-broker-", suffix=".log")
            os.close(number)
            self._log = Path(name)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", self._command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that all its child processes can be killed
            )
        self._watcher = die_with_us(self._process.pid)
        try:
            wait_until(self._ready, "the broker of --broker-command to let a client in", self._timeout_s, poll_s=0.1)
        except BaseException as error:
            said = self.log()
            self.kill9()
            if isinstance(error, TimeoutError):
                raise BrokerFailed(f"{error}; it says:\n{said}") from error
            raise

    def kill9(self) -> None:
        """Kill the command and all its child processes with SIGKILL; return when the port no longer answers."""
        if self._command is None:
            raise RuntimeError("a broker without --broker-command is not killed")
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._watcher is not None:
            self._watcher.wait()
        self._process = self._watcher = None
        wait_until(lambda: not self._answers(), "the broker to be gone", poll_s=0.1)

    def close(self) -> None:
        """Kill the processes that were started here."""
        if self._process is not None:
            self.kill9()
        if self._log is not None:
            self._log.unlink(missing_ok=True)
            self._log = None

    def _ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise BrokerFailed(f"the command of --broker-command has ended with {self._process.poll()}:\n{self.log()}")
        try:
            dial(self, heartbeat=0, connect_timeout=5.0).close()
        except (AuthenticationFailed, VirtualHostRefused):
            raise
        except AmqpError:  # not yet
            return False
        return True

    def _answers(self) -> bool:
        try:
            dial(self, heartbeat=0, connect_timeout=5.0).close()
        except (AuthenticationFailed, VirtualHostRefused):
            return True
        except ConnectionFailed:
            return False
        except AmqpError:  # a server answers, but not with AMQP 0-10
            return True
        return True


class Given:
    """Broker arguments of the command line.

    Args:
        url, username, password: of an existing broker; without a URL the matrix starts its own.
        command: that starts it.
        server: its kind.
    """

    def __init__(
        self,
        url: str | None = None,
        username: str = "guest",
        password: str = "guest",
        command: str | None = None,
        server: Server = BROKER_J,
    ) -> None:
        self.url = url
        self.command = command
        self.server = server
        self._login = username, password

    @property
    def name(self) -> str:
        """Kind of server, or host and port of a given one, for the name of a file."""
        if self.url is None:
            return self.server.name
        hosts, _, _ = parse_url(self.url)
        return "-".join(str(part) for part in hosts[0])

    def make(self) -> MortalBroker:
        """Make the broker of a job."""
        return self.server.make() if self.url is None else GivenBroker(self.url, *self._login, self.command)

    @property
    def most_jobs(self) -> int | None:
        """Maximum number of parallel jobs: killing a shared broker affects all of them."""
        return None if self.command is None else 1

    def left_out(self, case: Case) -> str | None:
        """Why a case is not run on this broker; ``None`` if it is run."""
        reason = self.server.left_out(case)
        if reason is not None or self.url is None:
            return reason
        if MEMORY_BROKER in case.victims:
            return "a broker that forgets everything is one of our own"
        if BROKER in case.victims and self.command is None:
            return "without --broker-command the broker is not killed"
        return None
