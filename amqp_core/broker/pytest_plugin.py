"""Fixtures for tests of programs that use AMQP; pytest finds them where this package is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from amqp_core import broker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqp_core.broker import Broker


@pytest.fixture(scope="session")
def amqp_broker() -> Iterator[Broker]:
    """An embedded broker (AMQP 0-10 and 0-9-1) for the tests of a session; user guest, password guest."""
    with broker.running() as started:
        yield started


@pytest.fixture
def amqp_url(amqp_broker: Broker) -> str:
    """The URL of a virtual host that no other test has, without credentials."""
    return amqp_broker.url_of(amqp_broker.add_virtual_host())
