"""``rabbitmq_encode_rate``: ``encode_rate`` (:mod:`.bench_encode`) with the frames of basic.publish, for 0-9-1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_spark.arrow.encode import FrameFormat
from tests.bench.bench_encode import rates

if TYPE_CHECKING:
    from tests.bench.environment import Result

FRAMES = FrameFormat(protocol="0-9-1", max_frame_size=131_072)
"""As RabbitMQ agrees to them."""


def run() -> list[Result]:
    """Encode the same batches again and again; the value is that of the median round."""
    return rates("rabbitmq_encode_rate", FRAMES)
