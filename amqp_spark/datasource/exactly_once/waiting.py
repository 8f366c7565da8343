"""Slow work on the spool while a session is kept alive."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.api import Client

T = TypeVar("T")

KEEP_ALIVE_SECONDS: Final = 0.5
"""Interval between two keep-alives: a quarter of the shortest time after which a broker gives up a silent client."""


def meanwhile(client: Client, work: Callable[[], T]) -> T:
    """Run slow work on the spool while keeping the session alive: a silent client loses its session and the lock."""
    with ThreadPoolExecutor(1, "amqp-spool") as pool:
        working = pool.submit(work)
        while not wait([working], KEEP_ALIVE_SECONDS).done:
            client.sync()
        return working.result()
