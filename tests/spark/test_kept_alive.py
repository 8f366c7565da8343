"""A client that lives on while its user does not use it."""

from __future__ import annotations

from typing import Any

from amqp_spark.datasource.kept_alive import KeptAlive
from tests.support.process import wait_until


class Client:
    """Notes whether it read when it was serviced."""

    heartbeat_s = 0.02

    def __init__(self) -> None:
        self.is_paused = False
        self.paused: list[bool] = []

    def pause_reading(self, paused: bool) -> None:
        self.is_paused = paused

    def service(self) -> None:
        self.paused.append(self.is_paused)


def test_what_arrives_while_the_user_rests_waits_in_the_socket() -> None:
    """However long that takes, and however large the messages are: memory stays as it is. Heartbeats are sent."""
    client: Any = Client()
    with KeptAlive(client) as kept:
        with kept.rest():
            wait_until(lambda: len(client.paused) >= 3, "it is serviced")
        assert not client.is_paused
    assert all(client.paused)
