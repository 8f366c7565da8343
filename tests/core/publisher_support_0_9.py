"""Shared code of the tests of the publisher of 0-9-1: connection.blocked, and a client that reads until it has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_core.v0_9 import spec
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.v0_9.client import Client

BLOCKED = spec.ConnectionBlocked(reason="low on memory")


def reading_until(client: Client, condition: Callable[[], bool], what: str) -> None:
    """Let a client read until a condition holds."""

    def holds() -> bool:
        client.service()
        return condition()

    wait_until(holds, what)
