"""The types of the fixtures in ``tests/conftest.py``, for the annotations of tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from amqp_core.v0_10.client import Client
    from tests.support.brokerj import BrokerJ
    from tests.support.rabbitmq import RabbitMQNode


class Broker(Protocol):
    """The interface of the shared broker for tests."""

    @property
    def username(self) -> str: ...

    @property
    def password(self) -> str: ...

    def url(self, vhost: str = "default") -> str: ...

    def log(self) -> str: ...


class OwnBroker(Protocol):
    """Starts a broker for one test; the arguments are those of ``BrokerConfig``."""

    def __call__(self, **config: Any) -> BrokerJ: ...


class OwnRabbitMQ(Protocol):
    """Starts a RabbitMQ node for one test; the arguments are those of ``RabbitMQConfig``."""

    def __call__(self, **config: Any) -> RabbitMQNode: ...


class Connect(Protocol):
    """Connects a client that is closed after the test; ``options`` are those of ``ConnectOptions``."""

    def __call__(self, vhost: str = "default", broker: Broker | None = None, **options: Any) -> Client: ...
