"""State queues of an in-memory broker: a lock, one message, and transactions that do all or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_core.errors import ResourceLocked
from amqp_spark.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from amqp_spark.state.names import Names
    from tests.spark.fake_client import FakeClient


class FakeOwner:
    """Stands in for a StateQueue. ``FakeBroker.states`` has the messages, ``FakeBroker.locks`` who has which lock."""

    def __init__(self, client: FakeClient, names: Names) -> None:
        self._client = client
        self._names = names

    def lock(self) -> None:
        broker = self._client.broker
        with broker.changed:
            self._client._command("lock")
            if broker.locks.get(self._names.lock, self._client) is not self._client:
                error = ResourceLocked(405, None, "somebody else has it", "queue.declare")
                self._client.end(error)
                raise error
            broker.locks[self._names.lock] = self._client
            broker.changed.notify_all()

    def exists(self) -> bool:
        with self._client.broker.changed:
            self._client._command("query")
            return self._names.state in self._client.broker.states

    def take(self) -> bytes | None:
        with self._client.broker.changed:
            self._locked("take")
            return self._client.broker.states.get(self._names.state)

    def create(self, body: bytes) -> None:
        with self._client.broker.changed:
            self._locked("create")
            assert self._names.state not in self._client.broker.states
            self._client.broker.states[self._names.state] = body

    def swap(
        self, body: bytes, *, accept: Sequence[tuple[int, int]] = (), sent: Callable[[], None] | None = None
    ) -> None:
        broker = self._client.broker
        with broker.changed:
            self._locked("swap")
            if self._names.state not in broker.states:
                raise StateError("the state queue is gone")
            if sent is not None:
                sent()
            outcome = broker.swap_outcomes.pop(0) if broker.swap_outcomes else None
            if outcome is None or outcome.commits:
                self._client.accept(accept)
                broker.states[self._names.state] = body
                broker.swaps += 1
            if outcome is not None:
                self._client.end(outcome.error)
                raise outcome.error
            broker.changed.notify_all()

    def _locked(self, name: str) -> None:
        self._client._command(name)
        assert self._client.broker.locks.get(self._names.lock) is self._client
