"""The embedded broker as a process of its own, with a store that outlives it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, ClassVar

from tests.support.broker_process import HOST, BrokerProcess
from tests.support.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path


class BoxProcess(BrokerProcess):
    """``python -m amqp_core.broker --store``. Ports and store stay the same over a restart.

    Args:
        durable: False: everything is in memory.
    """

    title: ClassVar[str] = "the embedded broker"
    ready: ClassVar[str] = "amqp://"
    bind_failed: ClassVar[str] = "Cannot listen on port"

    def __init__(self, *, durable: bool = True) -> None:
        super().__init__()
        self.durable = durable
        self.port = 0
        self.username = self.password = "guest"

    def url(self, vhost: str = "/") -> str:
        """URL of its only virtual host, whichever is asked for, without credentials."""
        return f"amqp://{HOST}:{self.port}/%2F"

    @property
    def store(self) -> Path:
        """The file of its store."""
        assert self.work_dir is not None
        return self.work_dir / "broker.db"

    def _prepare(self, work_dir: Path) -> None:
        self.port = free_port()

    def _command(self, work_dir: Path) -> list[str]:
        store = ("--store", str(self.store)) if self.durable else ()
        return [sys.executable, "-m", "amqp_core.broker", "--port", str(self.port), *store]

    def _port_is_given(self) -> bool:
        return False
