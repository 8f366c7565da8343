"""Downloads what the tests need, from Maven Central and Debian, before the timeout of any test runs."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from tests.support import brokerj, javapeer, kafka, proton, rabbitmq_install, spark_packages
from tests.support.choice import all_cases, in_ci
from tests.support.maven import FetchFailed, cache_root
from tests.support.peers_0_9 import java_peer
from tests.support.prerequisites import PrerequisiteMissing

if TYPE_CHECKING:
    from collections.abc import Callable


def main() -> int:
    """Fill the cache; return the exit code."""
    packages: list[str] = []
    only_all: list[tuple[str, Callable[[], bool], Callable[[], object]]] = []
    if all_cases():
        packages = [*(spark_packages.coordinates(name) for name in ("delta.sh", "iceberg.sh")), kafka.SPARK_SOURCE]
        only_all = [
            (f"Kafka {kafka.VERSION}", kafka.is_fetched, kafka.jars),
            ("python-qpid-proton", proton.is_installed, proton.directory),
        ]
    needed: list[tuple[str, Callable[[], bool], Callable[[], object]]] = [
        (f"Broker-J {brokerj.VERSION}", brokerj.is_fetched, brokerj.distribution),
        ("the Java JMS client", javapeer.is_fetched, javapeer.jars),
        ("the Java client of RabbitMQ", java_peer.is_fetched, java_peer.jars),
        *(
            (package, partial(spark_packages.is_fetched, package), partial(spark_packages.repository, package))
            for package in packages
        ),
        *only_all,
    ]
    for name, fetched, fetch in needed:
        if not fetched():
            print(f"setup: fetching {name} into {cache_root()}", flush=True)
        try:
            fetch()
        except (FetchFailed, PrerequisiteMissing) as error:
            print(f"setup: {error}", file=sys.stderr)
            return 1
    releases = (rabbitmq_install.REFERENCE, *((rabbitmq_install.OLD,) if all_cases() else ()))
    for release in releases:
        try:
            if not rabbitmq_install.is_fetched(release):
                print(f"setup: unpacking RabbitMQ {release.version} into {cache_root()}", flush=True)
            rabbitmq_install.find(release)
        except rabbitmq_install.RabbitMQMissing as error:
            print(f"setup: {error}", file=sys.stderr)
            if in_ci():
                return 1
            print("setup: tests of this release are skipped", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
