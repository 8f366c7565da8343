"""Logging in to a real broker by every mechanism, and what each refusal is called. No secret is in any error."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from amqp_core.address import ConnectOptions, parse_url
from amqp_core.errors import (
    AmqpError,
    AuthenticationFailed,
    ConnectionFailed,
    ConnectionLost,
    DeadlineExceeded,
    TlsError,
    VersionRefused,
    VirtualHostRefused,
)
from amqp_core.v0_10.client import Client
from amqp_core.v0_10.messages import Message, messages_of
from tests.support.brokerj import BrokerConfig, BrokerJ, Listener
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.broker

SECRET = "guest-s3cret"


@pytest.fixture(scope="module")
def listening() -> Iterator[BrokerJ]:
    """A broker with every kind of listener."""
    config = BrokerConfig(
        listeners=("anonymous", "plain", "tls", "tls-client-auth"),
        durable=False,
        users={"guest": SECRET, "trader": "tr4der!=,x"},
        heap="512m",
    )
    with BrokerJ(config) as broker:
        yield broker


def connect(broker: BrokerJ, listener: Listener = "login", vhost: str = "default", **options: Any) -> Client:
    hosts, virtual_host, tls = parse_url(broker.url(vhost, listener))
    options = {"hosts": hosts, "virtual_host": virtual_host, "tls": tls, "connect_timeout": 20.0} | options
    if listener.startswith("tls"):
        options = {"tls_ca_file": str(broker.tls.ca_file)} | options
    return Client.connect(ConnectOptions(**options))


def mechanism_of(client: Client) -> str:
    return client.mechanism


LOGIN: dict[str, Any] = {"username": "guest", "password": SECRET}


@pytest.mark.parametrize(
    ("listener", "options", "mechanism"),
    [
        ("login", LOGIN, "SCRAM-SHA-256"),
        ("login", LOGIN | {"sasl_mechanisms": ("SCRAM-SHA-1",)}, "SCRAM-SHA-1"),
        ("login", LOGIN | {"sasl_mechanisms": ("CRAM-MD5",)}, "CRAM-MD5"),
        ("plain", LOGIN | {"sasl_mechanisms": ("PLAIN",)}, "PLAIN"),
        ("tls", LOGIN | {"sasl_mechanisms": ("PLAIN",)}, "PLAIN"),
        ("tls", LOGIN, "SCRAM-SHA-256"),
        ("anonymous", {}, "ANONYMOUS"),
        ("login", {"username": "trader", "password": "tr4der!=,x"}, "SCRAM-SHA-256"),
        ("login", {"username": "trader", "password": "tr4der!=,x", "sasl_mechanisms": ("CRAM-MD5",)}, "CRAM-MD5"),
    ],
)
def test_every_mechanism(listening: BrokerJ, listener: Listener, options: dict[str, Any], mechanism: str) -> None:
    with connect(listening, listener, **options) as client:
        assert mechanism_of(client) == mechanism
        client.sync()


def test_external_takes_the_identity_of_the_certificate(listening: BrokerJ) -> None:
    pair = listening.tls.client
    options: dict[str, Any] = {"tls_cert_file": str(pair.cert_file), "tls_key_file": str(pair.key_file)}
    with connect(listening, "tls-client-auth", **options) as client:
        assert mechanism_of(client) == "EXTERNAL"
        client.sync()


def test_a_password_file_is_read_for_each_connection(listening: BrokerJ, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("wrong\n")
    options: dict[str, Any] = {"username": "guest", "password_file": str(file)}
    with pytest.raises(AuthenticationFailed):
        connect(listening, **options)
    file.write_text(SECRET + "\n")
    connect(listening, **options).close()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-1", "CRAM-MD5", "PLAIN"])
@pytest.mark.parametrize("username", ["guest", "unknown"])
def test_a_wrong_login_is_refused(listening: BrokerJ, mechanism: str, username: str) -> None:
    options: dict[str, Any] = {"username": username, "password": "not-the-p4ssword", "sasl_mechanisms": (mechanism,)}
    with pytest.raises(AuthenticationFailed) as raised:
        connect(listening, "plain", **options)
    assert mechanism in str(raised.value)
    assert "p4ssword" not in repr(raised.value)
    assert not raised.value.retryable


@pytest.mark.parametrize(
    ("listener", "options", "text"),
    [
        ("login", {}, "SCRAM-SHA-256 needs a user name and a password"),
        ("login", LOGIN | {"sasl_mechanisms": ("PLAIN",)}, "many brokers offer PLAIN only over TLS"),
        ("anonymous", LOGIN, "ANONYMOUS is not used when a user name or password is given"),
        ("login", {"username": "guest"}, "needs a user name and a password"),
        ("login", LOGIN | {"sasl_mechanisms": ("EXTERNAL",)}, "allowed are EXTERNAL"),
    ],
)
def test_no_mechanism_suits(listening: BrokerJ, listener: Listener, options: dict[str, Any], text: str) -> None:
    with pytest.raises(AuthenticationFailed, match=text):
        connect(listening, listener, **options)


@pytest.mark.parametrize("vhost", ["no-such-host", "durable"])
def test_an_unknown_virtual_host(listening: BrokerJ, vhost: str) -> None:
    with pytest.raises(VirtualHostRefused, match=f"virtual host '{vhost}'") as raised:
        connect(listening, vhost=vhost, **LOGIN)
    assert not raised.value.retryable


def test_no_virtual_host_is_the_default_one(listening: BrokerJ) -> None:
    with connect(listening, vhost="", **LOGIN) as client:
        client.sync()


# ----------------------------------------------------------------------------------------------------------------- TLS
def test_an_authority_that_is_not_trusted(listening: BrokerJ) -> None:
    with pytest.raises(TlsError, match=r"is not trusted: .*CA file"):
        connect(listening, "tls", tls_ca_file=str(listening.tls.other_ca_file), **LOGIN)


def test_system_authorities_do_not_trust_it_either(listening: BrokerJ) -> None:
    with pytest.raises(TlsError, match="is not trusted"):
        connect(listening, "tls", tls_ca_file=None, **LOGIN)


def test_a_certificate_of_another_name(listening: BrokerJ) -> None:
    # 127.0.0.2 is loopback, too, and not in the certificate; the broker listens on 127.0.0.1, a relay leads there
    with _relay("127.0.0.2", listening.ports["tls"]) as port:
        with pytest.raises(TlsError, match=r"is for another name: .*verification of host names"):
            connect(listening, "tls", hosts=(("127.0.0.2", port),), **LOGIN)
        connect(listening, "tls", hosts=(("127.0.0.2", port),), tls_verify_hostname=False, **LOGIN).close()


class _relay:  # noqa: N801 - used like a function
    """Passes one connection after another from an address on to a port of 127.0.0.1."""

    def __init__(self, host: str, target: int) -> None:
        self._listener = socket.create_server((host, 0))
        self._target = target
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> int:
        self._thread.start()
        port: int = self._listener.getsockname()[1]
        return port

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            broker = socket.create_connection(("127.0.0.1", self._target))
            back = threading.Thread(target=self._copy, args=(broker, client), daemon=True)
            back.start()
            self._copy(client, broker)
            back.join(10)
            client.close()
            broker.close()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass


@pytest.mark.parametrize("certificate", ["none", "stranger"])
def test_a_client_certificate_that_the_broker_does_not_take(listening: BrokerJ, certificate: str) -> None:
    pair = listening.tls.stranger
    options: dict[str, Any] = {"tls_cert_file": str(pair.cert_file), "tls_key_file": str(pair.key_file)}
    # Broker-J closes without the alert that TLS has for it
    with pytest.raises((TlsError, ConnectionLost), match=r"client certificate"):
        connect(listening, "tls-client-auth", **(options if certificate == "stranger" else {}))


@pytest.mark.parametrize("name", ["tls_ca_file", "tls_cert_file"])
def test_a_tls_file_that_cannot_be_read(listening: BrokerJ, tmp_path: Path, name: str) -> None:
    for content in (None, "not a certificate"):
        file = tmp_path / "file.pem"
        if content is not None:
            file.write_text(content)
        with pytest.raises(TlsError, match=r"file\.pem.* cannot be used"):
            connect(listening, "tls", **({name: str(file)} | LOGIN))


def test_tls_to_a_port_without_it(listening: BrokerJ) -> None:
    with pytest.raises(TlsError, match=r"does not speak TLS: .* Use amqp://"):
        connect(listening, "tls", hosts=(("127.0.0.1", listening.port),), **LOGIN)


def test_no_tls_to_a_port_with_it(listening: BrokerJ) -> None:
    with pytest.raises(AmqpError) as raised:
        connect(listening, hosts=(("127.0.0.1", listening.ports["tls"]),), **LOGIN)
    assert isinstance(raised.value, VersionRefused | ConnectionLost)
    assert "amqps://" in str(raised.value)


def test_much_goes_through_tls(listening: BrokerJ) -> None:
    small, large = [b"%d:" % number + bytes(4000) for number in range(1500)], bytes(range(256)) * 20_000
    with connect(listening, "tls", heartbeat=5, **LOGIN) as client:
        client.declare_queue("over-tls", exclusive=True, auto_delete=True)
        for body in (*small, large):
            client.publish(Message(body), routing_key="over-tls")
        client.confirm()
        subscription = client.subscribe("over-tls")
        subscription.grant(10_000)
        subscription.flush()
        blocks = subscription.take_blocks(0)
        assert [message.body for block in blocks for message in messages_of(block)] == [*small, large]
        client.accept([(blocks[0].first_id, blocks[-1].first_id + blocks[-1].count - 1)], sync=True)
        client.wake()
        assert subscription.take_blocks(60.0) == []


# --------------------------------------------------------------------------- closed port, or no AMQP behind it
def test_a_closed_port(listening: BrokerJ) -> None:
    port = free_port()
    with pytest.raises(ConnectionFailed, match=f"Connecting to 127.0.0.1:{port} failed: Connection refused") as raised:
        connect(listening, hosts=(("127.0.0.1", port),), **LOGIN)
    assert raised.value.retryable


def test_a_name_that_does_not_exist(listening: BrokerJ) -> None:
    for name in ("no-such-host.invalid", "bad..name", "x" * 300):
        with pytest.raises(ConnectionFailed):
            connect(listening, hosts=((name, 5672),), **LOGIN)


def test_a_host_that_accepts_and_says_nothing(listening: BrokerJ) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        hosts = (("127.0.0.1", mute.getsockname()[1]),)
        with pytest.raises(DeadlineExceeded, match="connect timeout"):
            connect(listening, hosts=hosts, connect_timeout=0.3, **LOGIN)
        with pytest.raises(ConnectionFailed, match=r"no TLS handshake within 0\.3 s"):
            connect(listening, "tls", hosts=hosts, connect_timeout=0.3, **LOGIN)
        good = ("127.0.0.1", listening.port)
        connect(listening, hosts=(*hosts, good), connect_timeout=2.0, **LOGIN).close()


def test_an_http_server(listening: BrokerJ) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(VersionRefused, match="it offers HTTP"):
            connect(listening, hosts=(("127.0.0.1", server.getsockname()[1]),), **LOGIN)
        thread.join(10)


def test_the_host_list_is_tried_until_one_answers(listening: BrokerJ) -> None:
    good, closed = ("127.0.0.1", listening.port), ("127.0.0.1", free_port())
    with connect(listening, hosts=(closed, ("no-such-host.invalid", 1), good), **LOGIN) as client:
        assert client.peer == f"127.0.0.1:{listening.port}"
    with pytest.raises(ConnectionFailed, match=f"(?s)No broker of the host list.*{closed[1]}.*no-such-host.invalid"):
        connect(listening, hosts=(closed, ("no-such-host.invalid", 1)), **LOGIN)


def test_a_broker_that_speaks_only_0_9_1(own_broker: Any) -> None:
    broker: BrokerJ = own_broker(durable=False, protocols=("AMQP_0_9_1",), heap="256m")
    with pytest.raises(VersionRefused, match="it offers AMQP 0-9-1") as raised:
        connect(broker, username=broker.username, password=broker.password)
    assert raised.value.offered == "AMQP 0-9-1"


def test_heartbeats_keep_an_idle_connection_alive(listening: BrokerJ) -> None:
    with connect(listening, heartbeat=1, **LOGIN) as client:
        assert client._driver.connection.heartbeat_s == 1
        client.declare_queue("idle", exclusive=True, auto_delete=True)
        subscription = client.subscribe("idle")
        for _ in range(2):
            assert subscription.take_blocks(2.0) == []
        client.sync()
