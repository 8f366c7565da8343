"""Sample market data, and how it is published with the AMQP client alone."""

from __future__ import annotations

import json
import random
import time
import uuid
from typing import TYPE_CHECKING, NamedTuple

from amqp_core import Client as Client010
from amqp_core import DeliveryProperties, Message, MessageDeliveryMode, MessageProperties
from amqp_core.v0_9.client import Client as Client091
from amqp_core.v0_9.messages import Message as Message091
from amqp_core.v0_9.spec import BasicProperties

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from amqp_core.api import Client

SYMBOLS = ("ALV", "BAS", "BMW", "DTE", "RWE", "SAP", "SIE", "VOW3")
_NAMESPACE = uuid.UUID("5ba4b1b8-7fd4-4b22-8b5f-6d7c0a0d1ce5")
_PROGRAM = "market_data"


class Tick(NamedTuple):
    """One price: its id counts from 0; the message id is the same for the same seed."""

    id: int
    symbol: str
    price: float
    qty: int
    message_id: uuid.UUID

    @property
    def headers(self) -> dict[str, object]:
        """The fields as application headers."""
        return {"id": self.id, "symbol": self.symbol, "price": self.price, "qty": self.qty}

    @property
    def routing_key(self) -> str:
        """The routing key."""
        return f"ticks.{self.symbol}"

    @property
    def body(self) -> bytes:
        """The fields as JSON."""
        return json.dumps(self.headers, separators=(",", ":")).encode()


def ticks(count: int, seed: int, symbols: Sequence[str] = SYMBOLS) -> Iterator[Tick]:
    """``count`` ticks of sample data; the same for the same seed."""
    source = random.Random(seed)  # noqa: S311 - sample data, to be repeatable
    prices = {symbol: source.uniform(20, 200) for symbol in symbols}
    for number in range(count):
        symbol = source.choice(symbols)
        prices[symbol] *= 1 + source.gauss(0, 0.001)
        price, quantity = round(prices[symbol], 2), source.randint(1, 500)
        yield Tick(number, symbol, price, quantity, uuid.uuid5(_NAMESPACE, f"{seed}/{number}"))


def send(client: Client, tick: Tick, exchange: str) -> None:
    """Publish a tick with the protocol of the connection."""
    if isinstance(client, Client091):
        properties = BasicProperties(
            message_id=str(tick.message_id),
            content_type="application/json",
            app_id=_PROGRAM,
            delivery_mode=2,
            timestamp=int(time.time()),
            headers=tick.headers,
        )
        client.publish(Message091(tick.body, properties, exchange, tick.routing_key))
        return
    assert isinstance(client, Client010)
    delivery = DeliveryProperties(
        routing_key=tick.routing_key, delivery_mode=MessageDeliveryMode.PERSISTENT, timestamp=int(time.time())
    )
    described = MessageProperties(
        message_id=tick.message_id,
        content_type="application/json",
        app_id=_PROGRAM.encode(),
        application_headers=tick.headers,
    )
    client.publish(Message(tick.body, delivery, described), exchange)
