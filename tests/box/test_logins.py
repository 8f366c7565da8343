"""Logins of the embedded broker over sockets: every mechanism, with our client and with pika."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pika
import pytest

from amqp_core import ConnectOptions, connect
from amqp_core.address import parse_url
from amqp_core.broker import Broker, running
from amqp_core.broker.logins import Logins
from amqp_core.broker.peer import Peer
from amqp_core.broker.rights import Grants, Patterns
from amqp_core.broker.server import Server
from amqp_core.errors import AmqpError, AuthenticationFailed, UnauthorizedAccess
from amqp_spark.options import SourceOptions
from tests.box.logins_support import PASSWORD, write_users
from tests.support.process import ends_with_the_test

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from amqp_core.api import Client

GRANTS = {"carol": Grants(Patterns()), "guest": Grants(Patterns("^mine", ".*", ".*"))}
PROTOCOLS = ("0-10", "0-9-1", "0-9")
COMMAND = (sys.executable, "-m", "amqp_core.broker")


@pytest.fixture
def users(tmp_path: Path) -> Path:
    return write_users(tmp_path / "users.json", GRANTS)


@pytest.fixture
def broker(users: Path) -> Iterator[Broker]:
    with running(users=users) as found:
        yield found


def log_in(broker: Broker, **options: Any) -> Client:
    hosts, virtual_host, _ = parse_url(broker.url)
    return connect(ConnectOptions(hosts=hosts, virtual_host=virtual_host, **options))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("mechanism", ["PLAIN", "AMQPLAIN", "SCRAM-SHA-256"])
def test_a_name_and_a_password(broker: Broker, protocol: str, mechanism: str) -> None:
    options = {"username": "carol", "protocol": protocol, "sasl_mechanisms": (mechanism,)}
    if (protocol, mechanism) == ("0-10", "AMQPLAIN"):  # a mechanism of 0-9-1
        with pytest.raises(AuthenticationFailed, match="the broker offers SCRAM-SHA-256, PLAIN, ANONYMOUS"):
            log_in(broker, password=PASSWORD, **options)
        return
    for _ in range(2):
        with log_in(broker, password=PASSWORD, **options) as client:
            client.declare_queue("q")
    code = "320" if protocol == "0-10" else "403"
    for wrong in ({"password": "wrong"}, {"password": PASSWORD, "username": "nobody"}):
        with pytest.raises(AuthenticationFailed, match=rf"refused the login \({mechanism}\): {code}"):
            log_in(broker, **options | wrong)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_without_a_name_it_is_guest(broker: Broker, amqp_broker: Broker, protocol: str) -> None:
    with log_in(broker, protocol=protocol) as client:
        client.declare_queue("mine")
        with pytest.raises(UnauthorizedAccess, match="refused for user 'guest'"):
            client.declare_queue("other")
    with log_in(amqp_broker, protocol=protocol) as client:
        client.declare_queue(f"anonymous {protocol}")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("mechanisms", [None, "SCRAM-SHA-256", "PLAIN"])
def test_the_options_of_the_connector(broker: Broker, tmp_path: Path, protocol: str, mechanisms: str | None) -> None:
    (tmp_path / "password").write_text(f"{PASSWORD}\n", encoding="utf-8")
    given = {"url": broker.url, "queue": "q", "protocol": protocol, "username": "carol"}
    given |= {"passwordFile": str(tmp_path / "password")} | ({"saslMechanisms": mechanisms} if mechanisms else {})
    with connect(SourceOptions.parse(given).connect_options()) as client:
        client.declare_queue("q")


def test_pika(broker: Broker) -> None:
    def parameters(name: str, password: str) -> pika.ConnectionParameters:
        login = pika.PlainCredentials(name, password)
        return pika.ConnectionParameters("127.0.0.1", broker.port, credentials=login)

    with pika.BlockingConnection(parameters("carol", PASSWORD)) as connection:
        connection.channel().queue_declare("q")
    for name, password in (("carol", "wrong"), ("guest", "guest")):
        with pytest.raises(
            pika.exceptions.ProbableAuthenticationError, match=r"403.*ACCESS_REFUSED - Login was refused"
        ):
            pika.BlockingConnection(parameters(name, password))


def test_the_default_login_is_gone_where_there_are_users(broker: Broker) -> None:
    assert (broker.username, broker.password) == ("", "")
    with pytest.raises(AuthenticationFailed):
        log_in(broker, username="guest", password="guest")


@pytest.mark.parametrize("protocol", ["0-10", "0-9-1"])
def test_nobody_waits_for_the_logins_of_others(broker: Broker, protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two logins hold all the threads, and a third waits for one, while a client that is connected goes on."""
    release, begun, original = threading.Event(), threading.Semaphore(0), Logins.match
    options = {"username": "carol", "password": PASSWORD, "protocol": protocol}
    client = log_in(broker, **options)

    def slow(self: Logins, name: str, password: str) -> bool:
        begun.release()
        assert release.wait(60)
        return original(self, name, password)

    monkeypatch.setattr(Logins, "match", slow)
    wrong = options | {"password": "wrong", "sasl_mechanisms": ("PLAIN",), "connect_timeout": 60.0}
    with ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(log_in, broker, **wrong) for _ in range(2)]
        assert all(begun.acquire(timeout=60) for _ in range(2))
        client.declare_queue("meanwhile")
        assert client.query_queue("meanwhile") is not None
        with log_in(broker, **options | {"sasl_mechanisms": ("SCRAM-SHA-256",)}) as other:  # needs no thread
            other.declare_queue("another")
        assert not any(each.done() for each in waiting)
        release.set()
        for each in waiting:
            with pytest.raises(AuthenticationFailed):
                each.result(60)
    client.close()


@pytest.mark.parametrize("protocol", ["0-10", "0-9-1"])
def test_a_right_password_is_never_called_wrong(broker: Broker, protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A right password is accepted after a wait, although 120 other logins wait for their check."""
    release, begun, original = threading.Event(), threading.Event(), Logins.match

    def slow(self: Logins, name: str, password: str) -> bool:
        begun.set()
        assert release.wait(60)
        return name == "carol" and original(self, name, password)

    monkeypatch.setattr(Logins, "match", slow)
    options = {"password": PASSWORD, "sasl_mechanisms": ("PLAIN",), "connect_timeout": 60.0, "protocol": protocol}
    with ThreadPoolExecutor(121) as threads:
        strangers = [threads.submit(log_in, broker, username=f"stranger{n}", **options) for n in range(120)]
        assert begun.wait(60)
        ours = threads.submit(log_in, broker, username="carol", **options)
        assert not ours.done()
        release.set()
        ours.result(60).close()
        for each in strangers:
            with pytest.raises(AuthenticationFailed):
                each.result(60)


class _RemoteSocket(asyncio.Transport):
    """The socket of a client on another machine; takes what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.7", 4711)})
        self.written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return False

    def is_reading(self) -> bool:
        return True

    def abort(self) -> None:
        pass


@pytest.mark.parametrize(("allowed", "offered"), [(False, b"SCRAM-SHA-256 PLAIN AMQPLAIN"), (True, b" ANONYMOUS")])
def test_what_is_offered_to_another_machine(allowed: bool, offered: bytes) -> None:
    async def connection_start() -> bytes:
        server, socket = Server(logins=Logins(allow_anonymous=allowed)), _RemoteSocket()
        peer = Peer(server)
        peer.connection_made(socket)
        peer.data_received(b"AMQP\x00\x00\x09\x01")
        await asyncio.sleep(0)  # what is written is written after the event
        peer.connection_lost(None)
        return socket.written

    start = asyncio.run(connection_start())
    assert offered in start
    assert (b"ANONYMOUS" in start) is allowed


# ----------------------------------------------------------------------------------------------------- the command line
def run(*arguments: object, password: str = "") -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, input=password, capture_output=True, text=True, timeout=60, check=False)


def test_users_of_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "users.json"
    assert run("user", "add", "--users", file, "carol", "--write", ".*", password=f"{PASSWORD}\n").returncode == 0
    command = [*COMMAND, "--port", "0", "--users", str(file)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
        ends_with_the_test(process),
    ):
        assert process.stdout is not None
        found = re.fullmatch(r"amqp://127\.0\.0\.1:(\d+)/%2F  users of (.*)\n", process.stdout.readline())
        assert found is not None
        assert found[2] == str(file)
        options = ConnectOptions(hosts=(("127.0.0.1", int(found[1])),), username="carol", password=PASSWORD)
        with connect(options) as client, pytest.raises(UnauthorizedAccess, match="configure access to queue 'q'"):
            client.declare_queue("q")
        with pytest.raises(AuthenticationFailed):
            connect(ConnectOptions(hosts=options.hosts, username="carol", password="wrong"))
        process.terminate()
        _, log = process.communicate(timeout=20)
    assert process.returncode == 143
    assert "name or password is wrong" in log
    assert PASSWORD not in log
    assert "wrong\0" not in log
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("--users", "missing"), 3, "AMQP_USERS_UNREADABLE"),
        (("--users", "damaged"), 3, "AMQP_USERS_DAMAGED"),
        (("--host", "192.0.2.1"), 3, r"Cannot listen on port 0 of 192\.0\.2\.1"),
        (("user", "list"), 2, "--users"),
        (("user", "list", "--users", "missing"), 3, "AMQP_USERS_UNREADABLE"),
    ],
)
def test_what_the_command_line_refuses(tmp_path: Path, arguments: tuple[str, ...], code: int, text: str) -> None:
    (tmp_path / "damaged").write_text("{", encoding="utf-8")
    given = [str(tmp_path / each) if each in ("missing", "damaged") else each for each in arguments]
    done = run(*(given if given[0] == "user" else ["--port", "0", *given]))
    assert done.returncode == code
    assert re.search(text, done.stderr)


def test_elsewhere_than_on_loopback_the_default_login_is_for_this_machine() -> None:
    command = [*COMMAND, "--port", "0", "--host", "0.0.0.0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.kill()
    assert re.fullmatch(r"amqp://127\.0\.0\.1:\d+/%2F  user guest, password guest, from this machine only\n", line)


def test_a_file_of_users_that_is_missing_is_an_error_of_running(tmp_path: Path) -> None:
    with pytest.raises(AmqpError, match="AMQP_USERS_UNREADABLE"), running(users=tmp_path / "missing"):
        pass
