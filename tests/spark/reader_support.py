"""Makes stream readers over a fake broker and stops them."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from amqp_spark.datasource.stream_reader import AmqpStreamReader
from amqp_spark.options import SourceOptions
from tests.spark.fake_client import BodyPlan

if TYPE_CHECKING:
    from amqp_spark.columns import ColumnPlan
    from tests.spark.fake_client import FakeBroker


class Readers:
    """Fixture value: builds readers of one broker, with options by their public names."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.made: list[AmqpStreamReader] = []

    def __call__(self, queue: str = "q", **options: str | int) -> AmqpStreamReader:
        given = {"url": "amqp://localhost", "queue": queue, "retry.maxDelay": "0.05"}
        given |= {key.replace("__", "."): str(value) for key, value in options.items()}
        plan = cast("ColumnPlan", BodyPlan())
        reader = AmqpStreamReader(SourceOptions.parse(given), plan, connector=self.broker.connect)
        self.made.append(reader)
        return reader

    def stop(self) -> None:
        for reader in self.made:
            reader.stop()
