"""Fixtures of the tests of the examples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.examples.examples_support import Queues

if TYPE_CHECKING:
    from amqp_core.broker import Broker


@pytest.fixture
def queues(amqp_broker: Broker) -> Queues:
    """The queues of the examples, in a virtual host of their own."""
    return Queues.on(amqp_broker)
