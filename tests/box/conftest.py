"""Clients of the embedded broker."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

import pika
import pytest

from amqp_core.address import ConnectOptions, parse_url
from amqp_core.broker import running
from amqp_core.broker.rights import Grants, Patterns
from amqp_core.v0_9.client import Client
from amqp_core.v0_10.client import Client as Client010
from tests.box.logins_support import PASSWORD, write_users

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pika.adapters.blocking_connection import BlockingConnection

    from amqp_core.broker import Broker


class Connect(Protocol):
    """Connects our own client."""

    def __call__(self, **options: Any) -> Client: ...


class Connect010(Protocol):
    """Connects our own client of 0-10."""

    def __call__(self, **options: Any) -> Client010: ...


@pytest.fixture
def vhost(amqp_broker: Broker) -> str:
    """A virtual host of its own for each test."""
    return amqp_broker.add_virtual_host()


@pytest.fixture
def connect(amqp_broker: Broker, vhost: str) -> Iterator[Connect]:
    """A function that connects our own client."""
    hosts, virtual_host, _ = parse_url(amqp_broker.url_of(vhost))
    with ExitStack() as stack:

        def make(**options: Any) -> Client:
            given = {"username": "guest", "password": "guest", "protocol": "0-9-1"} | options
            client = Client.connect(ConnectOptions(hosts=hosts, virtual_host=virtual_host, **given))
            stack.callback(client.close)
            return client

        yield make


@pytest.fixture
def connect_0_10(amqp_broker: Broker, vhost: str) -> Iterator[Connect010]:
    """A function that connects our own client of 0-10, to the same virtual host."""
    hosts, virtual_host, _ = parse_url(amqp_broker.url_of(vhost))
    with ExitStack() as stack:

        def make(**options: Any) -> Client010:
            given = {"virtual_host": virtual_host, "username": "guest", "password": "guest"} | options
            client = Client010.connect(ConnectOptions(hosts=hosts, **given), call_timeout_s=20.0)
            stack.callback(client.close)
            return client

        yield make


@pytest.fixture
def pika_connection(amqp_broker: Broker, vhost: str) -> Iterator[Callable[[], BlockingConnection]]:
    """A function that connects pika."""
    with ExitStack() as stack:

        def make() -> BlockingConnection:
            parameters = pika.ConnectionParameters("127.0.0.1", amqp_broker.port, vhost)
            connection = pika.BlockingConnection(parameters)
            stack.callback(lambda: connection.close() if connection.is_open else None)
            return connection

        yield make


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with users: carol may do everything, reader may read ``ticks``, writer may publish to ``out``."""
    grants = {
        "carol": Grants(Patterns()),
        "reader": Grants(Patterns("", "", "^ticks$")),
        "writer": Grants(Patterns("", "^out$", "")),
        "keeper": Grants(Patterns(r"^amqp-spark\.", ".*", ".*")),
    }
    users = write_users(tmp_path_factory.mktemp("users") / "users.json", grants)
    with running(users=users) as broker:
        hosts, virtual_host, _ = parse_url(broker.url)
        carol = ConnectOptions(hosts=hosts, virtual_host=virtual_host, username="carol", password=PASSWORD)
        with Client010.connect(carol) as client:
            client.declare_queue("ticks", durable=True)
            client.declare_queue("other", durable=True)
            client.declare_exchange("out", "fanout")
        yield broker
