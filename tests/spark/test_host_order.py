"""In which order the hosts of a URL are tried after losses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from amqp_core.address import ConnectOptions, format_address
from amqp_spark.host_order import HostOrder

if TYPE_CHECKING:
    from amqp_core.api import Client

OPTIONS = ConnectOptions(hosts=(("a", 1), ("b", 2), ("fd00::2", 3)))


def first_host(options: ConnectOptions) -> Client:
    return cast("Client", SimpleNamespace(peer=format_address(*options.hosts[0])))


def test_the_host_that_was_lost_comes_last_however_often_it_was_lost_before() -> None:
    hosts = HostOrder()
    tried = []
    for _ in range(7):
        tried.append(hosts.connect(first_host, OPTIONS).peer)
        hosts.lost()
    assert tried == ["a:1", "b:2", "[fd00::2]:3", "a:1", "b:2", "[fd00::2]:3", "a:1"]
    assert [host for host, _ in hosts.applied(OPTIONS).hosts] == ["b", "fd00::2", "a"]
