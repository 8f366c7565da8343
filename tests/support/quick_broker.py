"""Speeds up the start of every Broker-J of the tests.

Java loads the broker's classes from an archive (class data sharing) that :func:`make_archive` makes once: this saves a
third of the CPU that a start needs. Without the archive, or where the Java is another one, Java does without.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from amqp_core import ConnectOptions, connect
from tests.support.brokerj import HOST, BrokerConfig, BrokerJ, class_archive
from tests.support.maven import cached_directory

if TYPE_CHECKING:
    from pathlib import Path


def make_archive() -> None:
    """Make the archive of classes, unless it is there."""

    def fill(directory: Path) -> None:
        option = f"-XX:ArchiveClassesAtExit={directory / class_archive().name}"
        with BrokerJ(BrokerConfig(protocols=("AMQP_0_10", "AMQP_0_9_1"), java_options=(option,))) as broker:
            for virtual_host in ("default", "durable"):
                _use(broker, virtual_host)
            broker.stop(timeout_s=120)  # the archive is written at the end

    cached_directory(class_archive().parent.name, fill)


def _use(broker: BrokerJ, virtual_host: str) -> None:
    """Make the broker load the classes that the first clients of both protocols need."""
    login = ConnectOptions(hosts=((HOST, broker.port),), username=broker.username, password=broker.password)
    for protocol in ("0-10", "0-9-1"):
        options = replace(login, virtual_host=virtual_host, protocol=protocol)
        with connect(options) as client:
            client.declare_queue(protocol, durable=True)
            client.publish_to_queue(protocol, b"a message", content_type="text/plain")
            client.sync()
            client.subscribe(protocol)  # the broker delivers the message
            client.sync()


if __name__ == "__main__":
    make_archive()
