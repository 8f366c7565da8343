"""Connects clients of this project to a test broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from amqp_core.address import ConnectOptions, parse_url
from amqp_core.v0_10.client import DEFAULT_CALL_TIMEOUT_S, Client

if TYPE_CHECKING:
    from tests.support.fixtures import Broker


def address(broker: Broker) -> tuple[str, int]:
    """Host and port of a broker, the first ones if its URL names several."""
    hosts, _, _ = parse_url(broker.url())
    return hosts[0]


def by_way_of(port: int, url: str) -> str:
    """The URL of a virtual host, through a proxy at a local port."""
    return urlunsplit(urlsplit(url)._replace(netloc=f"127.0.0.1:{port}"))


def dial(
    broker: Broker, vhost: str = "default", *, call_timeout_s: float = DEFAULT_CALL_TIMEOUT_S, **options: Any
) -> Client:
    """Connect to a virtual host with the broker's own login; ``options`` are those of ``ConnectOptions``."""
    hosts, virtual_host, tls = parse_url(broker.url(vhost))
    options = {"username": broker.username, "password": broker.password} | options
    given = ConnectOptions(hosts=hosts, virtual_host=virtual_host, tls=tls, **options)
    return Client.connect(given, call_timeout_s=call_timeout_s)
