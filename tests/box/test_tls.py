"""TLS of the embedded broker, and logins with a client certificate."""

from __future__ import annotations

import re
import socket
import ssl
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pika
import pytest

from amqp_core import ConnectOptions, connect
from amqp_core.address import parse_url
from amqp_core.broker import Broker, running, server
from amqp_core.broker.rights import Grants, Patterns
from amqp_core.errors import AmqpError, AuthenticationFailed, ConnectionFailed, UnauthorizedAccess
from tests.box.logins_support import PASSWORD, write_users
from tests.support.process import ends_with_the_test, wait_until
from tests.support.tls import TlsMaterial

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqp_core.api import Client

PROTOCOLS = ("0-10", "0-9-1", "0-9")
LOGIN: dict[str, Any] = {"username": "carol", "password": PASSWORD}


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsMaterial:
    return TlsMaterial.make(tmp_path_factory.mktemp("keys") / "tls")


@pytest.fixture(scope="module")
def broker(tls: TlsMaterial, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that asks for certificates; the user ``client`` has one, and may declare ``mine`` only."""
    grants = {"carol": Grants(Patterns()), "client": Grants(Patterns("^mine$", "", ""))}
    users = write_users(tmp_path_factory.mktemp("users") / "users.json", grants)
    with running(users=users, tls_cert=tls.server.cert_file, tls_key=tls.server.key_file, tls_ca=tls.ca_file) as found:
        yield found


def log_in(broker: Broker, material: TlsMaterial, *, certificate: bool = False, **options: Any) -> Client:
    hosts, virtual_host, is_tls = parse_url(broker.url)
    files = {"tls_cert_file": str(material.client.cert_file), "tls_key_file": str(material.client.key_file)}
    given: dict[str, Any] = (
        {"tls": is_tls, "tls_ca_file": str(material.ca_file)} | (files if certificate else {}) | options
    )
    return connect(ConnectOptions(hosts=hosts, virtual_host=virtual_host, **given))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_much_goes_through_tls(broker: Broker, tls: TlsMaterial, protocol: str) -> None:
    assert broker.url.startswith("amqps://127.0.0.1:")
    with log_in(broker, tls, protocol=protocol, **LOGIN) as client:
        client.declare_queue(protocol)
        bodies = [bytes([number]) * 300_000 for number in range(40)]
        for body in bodies:
            client.publish_to_queue(protocol, body, content_type="x/y")
        client.confirm()
        with log_in(broker, tls, protocol=protocol, **LOGIN) as consumer:
            subscription: Any = consumer.subscribe(protocol, accept=False)
            found: list[bytes] = []
            while len(found) < len(bodies):
                found += [message.body for message in subscription.take(7)]
    assert found == bodies


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_external_is_the_common_name_of_the_certificate(broker: Broker, tls: TlsMaterial, protocol: str) -> None:
    with log_in(broker, tls, certificate=True, protocol=protocol, sasl_mechanisms=("EXTERNAL",)) as client:
        client.declare_queue("mine")
        with pytest.raises(UnauthorizedAccess, match="refused for user 'client'"):
            client.declare_queue("other")


def test_a_certificate_does_not_hinder_a_login_with_a_password(broker: Broker, tls: TlsMaterial) -> None:
    with log_in(broker, tls, certificate=True, **LOGIN) as client:
        client.declare_queue("other")


def test_pika_with_a_certificate(broker: Broker, tls: TlsMaterial) -> None:
    context = ssl.create_default_context(cafile=str(tls.ca_file))
    context.load_cert_chain(tls.client.cert_file, tls.client.key_file)
    parameters = pika.ConnectionParameters(
        "127.0.0.1",
        broker.port,
        credentials=pika.credentials.ExternalCredentials(),
        ssl_options=pika.SSLOptions(context, "127.0.0.1"),
    )
    with pika.BlockingConnection(parameters) as connection:
        connection.channel().queue_declare("mine")


def test_a_certificate_of_a_stranger_is_refused(broker: Broker, tls: TlsMaterial) -> None:
    stranger: dict[str, Any] = {
        "tls_cert_file": str(tls.stranger.cert_file),
        "tls_key_file": str(tls.stranger.key_file),
    }
    with pytest.raises(ConnectionFailed):
        log_in(broker, tls, sasl_mechanisms=("EXTERNAL",), **stranger)


def test_external_is_not_offered_without_a_verified_certificate(tls: TlsMaterial) -> None:
    with running(tls_cert=tls.server.cert_file, tls_key=tls.server.key_file) as found:  # it asks for none
        with pytest.raises(AuthenticationFailed, match="the broker offers SCRAM-SHA-256, PLAIN"):
            log_in(found, tls, certificate=True, sasl_mechanisms=("EXTERNAL",))
        log_in(found, tls, username="guest", password="guest").close()


def test_clients_without_tls_cost_the_others_nothing(broker: Broker, tls: TlsMaterial) -> None:
    with log_in(broker, tls, **LOGIN) as client:
        with pytest.raises(ConnectionFailed):
            log_in(broker, tls, **LOGIN | {"tls": False, "tls_ca_file": None})
        client.declare_queue("q")


def test_sockets_without_a_handshake_have_the_bound_of_other_clients(
    tls: TlsMaterial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes a buffer and a file; they make room when they go."""
    monkeypatch.setattr(server, "LOGINS_BESIDE", 5)
    with running(tls_cert=tls.server.cert_file, tls_key=tls.server.key_file, max_connections=3) as found:
        with ExitStack() as sockets:
            silent = [
                sockets.enter_context(socket.create_connection(("127.0.0.1", found.port), timeout=60))
                for _ in range(20)
            ]
            open_ones = [each for each in silent if not _is_closed(each)]
            assert len(open_ones) == 8
            with pytest.raises(ConnectionFailed):
                log_in(found, tls, username="guest", password="guest")
        wait_until(lambda: _logs_in(found, tls), "room for a client")


def _is_closed(client: socket.socket) -> bool:
    """Whether the broker closes the socket; who may begin the handshake hears nothing."""
    client.settimeout(1)
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


def _logs_in(broker: Broker, tls: TlsMaterial) -> bool:
    try:
        log_in(broker, tls, username="guest", password="guest").close()
    except ConnectionFailed:
        return False
    return True


def test_a_broker_that_stops_ends_handshakes(tls: TlsMaterial) -> None:
    with running(tls_cert=tls.server.cert_file, tls_key=tls.server.key_file) as found:
        client = socket.create_connection(("127.0.0.1", found.port), timeout=60)
        assert not _is_closed(client)
    with client:
        assert _is_closed(client)


# ----------------------------------------------------------------------------------------------------- the command line
@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("--tls-cert", "server.pem"), 2, "--tls-cert and --tls-key belong together"),
        (("--tls-key", "server.key"), 2, "--tls-cert and --tls-key belong together"),
        (("--tls-ca", "ca.pem"), 2, "--tls-ca needs --tls-cert"),
        (("--tls-cert", "missing.pem", "--tls-key", "server.key"), 3, r"missing\.pem cannot be used: No such file"),
        (("--tls-cert", "server.key", "--tls-key", "server.key"), 3, "AMQP_CERTIFICATES_UNUSABLE"),
        (("--tls-cert", "server.pem", "--tls-key", "client.key"), 3, "AMQP_CERTIFICATES_UNUSABLE"),
        (("--tls-cert", "server.pem", "--tls-key", "locked.key"), 3, "without a passphrase"),
        (
            ("--tls-cert", "server.pem", "--tls-key", "server.key", "--tls-ca", "server.key"),
            3,
            "AMQP_CERTIFICATES_UNUSABLE",
        ),
    ],
)
def test_files_that_cannot_be_used(tls: TlsMaterial, arguments: tuple[str, ...], code: int, text: str) -> None:
    directory = tls.ca_file.parent
    if "locked.key" in arguments:
        _lock(tls)
    given = [each if each.startswith("--") else str(directory / each) for each in arguments]
    command = [sys.executable, "-m", "amqp_core.broker", "--port", "0", *given]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code
    assert re.search(text, done.stderr)


def _lock(tls: TlsMaterial) -> None:
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415 - for this one case
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    key = load_pem_private_key(tls.server.key_file.read_bytes(), password=None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"passphrase"))
    (tls.ca_file.parent / "locked.key").write_bytes(locked)


def test_the_command_line_serves_tls(tls: TlsMaterial) -> None:
    files = ("--tls-cert", str(tls.server.cert_file), "--tls-key", str(tls.server.key_file))
    command = [sys.executable, "-m", "amqp_core.broker", "--port", "0", *files]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process,
        ends_with_the_test(process),
    ):
        assert process.stdout is not None
        found = re.fullmatch(r"(amqps://127\.0\.0\.1:\d+/)%2F  user guest, password guest\n", process.stdout.readline())
        assert found is not None
        hosts, _, is_tls = parse_url(found[1])
        login: dict[str, Any] = {"username": "guest", "password": "guest"}
        connect(ConnectOptions(hosts=hosts, tls=is_tls, tls_ca_file=str(tls.ca_file), **login)).close()
        process.terminate()
    assert process.returncode == 143


def test_a_certificate_without_its_key_is_an_error_of_running(tls: TlsMaterial) -> None:
    with pytest.raises(AmqpError, match="needs a certificate and its key"), running(tls_cert=tls.server.cert_file):
        pass
