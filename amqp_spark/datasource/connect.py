"""AMQP 0-10 behind the source's client interface."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_core.v0_10.client import Client as Client010
from amqp_core.v0_10.spec import MessageAcceptMode, MessageAcquireMode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqp_core.address import ConnectOptions
    from amqp_spark.datasource.broker import Client, QueueInfo, StateOwner, Subscription
    from amqp_spark.state.names import Names


def connect(options: ConnectOptions) -> Client:
    """Connect one incarnation, walking the host list once. Errors are those of :meth:`Client010.connect`."""
    return _Client(Client010.connect(options))


class _Client:
    """See :class:`amqp_spark.datasource.broker.Client`."""

    def __init__(self, client: Client010) -> None:
        self._client = client
        self.accept = client.accept
        self.bind = client.bind
        self.close = client.close
        self.pause_reading = client.pause_reading
        self.service = client.service
        self.sync = client.sync
        self.wake = client.wake

    @property
    def counts_held_messages(self) -> bool:
        return not self._client.is_qpidd

    @property
    def heartbeat_s(self) -> float:
        return self._client.heartbeat_s

    def query_queue(self, name: str) -> QueueInfo | None:
        return self._client.query_queue(name)

    def declare_queue(self, name: str, *, durable: bool) -> None:
        self._client.declare_queue(name, durable=durable)

    def subscribe(
        self, queue: str, *, accept: bool, acquire: bool, exclusive: bool, selector: str | None
    ) -> Subscription:
        return self._client.subscribe(
            queue,
            accept_mode=MessageAcceptMode.EXPLICIT if accept else MessageAcceptMode.NONE,
            acquire_mode=MessageAcquireMode.PRE_ACQUIRED if acquire else MessageAcquireMode.NOT_ACQUIRED,
            exclusive=exclusive,
            selector=selector,
        )

    def reject(self, ranges: Sequence[tuple[int, int]], *, text: str, patience_s: float = 0.0) -> None:
        # str8 of the wire: 255 bytes (0-10 message.reject, domain reject text)
        self._client.reject(ranges, text=text.encode()[:255].decode(errors="ignore"), patience_s=patience_s)

    def owner(self, names: Names) -> StateOwner:
        from amqp_spark.state.queue import StateQueue  # noqa: PLC0415  not paid for by other guarantees

        return StateQueue(self._client, names)
