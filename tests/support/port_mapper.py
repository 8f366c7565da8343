"""Erlang's port mapper, which RabbitMQ nodes register with."""

from __future__ import annotations

import contextlib
import secrets
import socket
import subprocess
from typing import TYPE_CHECKING

from tests.support.broker_process import HOST
from tests.support.process import die_with_us, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class PortMapper:
    """Erlang's port mapper (epmd), which nodes need to find each other, and the cookie by which they trust each other.

    A node has one of its own, which lives as long as its process; the nodes of a cluster have one together.
    """

    def __init__(self) -> None:
        self.cookie = secrets.token_hex(10)
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self._process is not None and self._process.poll() is None

    def start(self, program: str, directory: Path, environment: Mapping[str, str]) -> None:
        """Start the process; return when nodes can find it, or when it has ended."""
        self._process = subprocess.Popen(
            [program, "-port", str(self.port), "-address", HOST],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=directory,
            start_new_session=True,
        )
        self._watcher = die_with_us(self._process.pid)
        wait_until(lambda: not self.running or self._answers(), "epmd to listen")

    def _answers(self) -> bool:
        try:
            socket.create_connection((HOST, self.port), 10).close()
        except OSError:
            return False
        return True

    def kill9(self) -> None:
        """Kill the process, if it is alive."""
        if self._process is not None and self._watcher is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()
            self._watcher.wait()
            self._process = self._watcher = None
