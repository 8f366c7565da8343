"""Connects clients of AMQP 0-9-1 to a test broker, and publishes with them."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from amqp_core.address import ConnectOptions, parse_url
from amqp_core.v0_9 import spec
from amqp_core.v0_9.client import Client
from amqp_core.v0_9.messages import Message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.fixtures import Broker


def dial_0_9(broker: Broker, vhost: str = "default", *, call_timeout_s: float = 30.0, **options: Any) -> Client:
    """Connect to a virtual host with the broker's own login; ``options`` are those of ``ConnectOptions``."""
    hosts, virtual_host, tls = parse_url(broker.url(vhost))
    settings: dict[str, Any] = {
        "hosts": hosts,
        "virtual_host": virtual_host,
        "tls": tls,
        "username": broker.username,
        "password": broker.password,
        "protocol": "0-9-1",
    }
    return Client.connect(ConnectOptions(**settings | options), call_timeout_s=call_timeout_s)


class Connect(Protocol):
    """Connect a client to the broker of a test."""

    def __call__(self, vhost: str = ..., **options: Any) -> Client: ...


@contextmanager
def dialling(broker: Broker, default: str = "default") -> Iterator[Connect]:
    """A function that connects clients, to a virtual host or the ``default`` one; all are closed at the end."""
    with ExitStack() as stack:

        def connect(vhost: str = default, **options: Any) -> Client:
            client = dial_0_9(broker, vhost, **options)
            stack.callback(client.close)
            return client

        yield connect


def put(client: Client, key: str, *bodies: bytes, exchange: str = "", **properties: Any) -> None:
    """Publish durable messages, and wait until the broker has confirmed them."""
    for body in bodies:
        content = spec.BasicProperties(**{"delivery_mode": 2} | properties)
        client.publish(Message(body, content), exchange, key, mandatory=False)
    client.confirm()
