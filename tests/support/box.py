"""The embedded broker as the tests and the demonstration see a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

from amqp_core.broker import Broker

if TYPE_CHECKING:
    from types import TracebackType


class Box:
    """An embedded broker in this process; a context starts and stops it."""

    title: ClassVar[str] = "the embedded broker"

    def __init__(self) -> None:
        self._broker = Broker()
        self.username, self.password = self._broker.username, self._broker.password

    def url(self, vhost: str = "/") -> str:
        """URL of a virtual host, without credentials."""
        return self._broker.url_of(vhost)

    def __enter__(self) -> Self:
        self._broker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._broker.stop()
