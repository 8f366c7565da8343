"""Makes stream readers over a fake broker and stops them.

The tests of the stream reader (``test_stream_reader_*.py``) check the contract of behaviour, point by point, on a fake
broker and a driver without a JVM. Each test named ``test_point_<n>_...`` belongs to the point of that number in the
list of what a source over a queue has to keep: 1 where messages are received, 2 batches fixed when planned, 3 decoding
late, 4 the accept signal, 5 epochs, 6 incarnations, 7 transport of bytes, 8 credit, 9 the end of the reader.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from amqp_spark.datasource import credit
from amqp_spark.datasource.micro_batch_stream import MicroBatchStream
from amqp_spark.datasource.stream_reader import AmqpStreamReader
from amqp_spark.errors import MessageFormatError
from amqp_spark.options import SourceOptions
from tests.support.fake_broker import bodies_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pytest

    from amqp_spark.arrow.decode import Chunk, ColumnPlan
    from tests.support.fake_broker import FakeBroker

_FIELDS: list[pa.Field[Any]] = [
    pa.field("queue", pa.string()),
    pa.field("position", pa.int64()),
    pa.field("body", pa.binary()),
]
SCHEMA = pa.schema(_FIELDS)


@dataclass
class BodyPlan:
    """Stands in for a ColumnPlan: queue, position and body; a body that begins with ``bad`` does not fit."""

    reads: list[int] = field(default_factory=list)

    def bodies(self, chunk: Chunk) -> list[bytes]:
        """The bodies of the transfers of a chunk."""
        return list(bodies_of(bytes(chunk.frames)))

    def batches(
        self,
        chunks: Iterable[Chunk],
        *,
        queue: str,
        first_position: int,
        on_reject: Callable[[list[int], str], None] | None = None,
        skipped: Iterable[int] = (),
    ) -> Iterator[pa.RecordBatch]:
        position = first_position
        left_out = set(skipped)
        for chunk in chunks:
            rows = list(enumerate(self.bodies(chunk), position))
            assert len(chunk.ends) == 4 * len(rows)
            position += len(rows)
            rows = [row for row in rows if row[0] not in left_out]
            bad = [number for number, body in rows if body.startswith(b"bad")]
            if bad:
                if on_reject is None:
                    raise MessageFormatError(queue, bad[0], "body", "a bad body")
                on_reject(bad, "a bad body")
            good = [row for row in rows if row[0] not in bad]
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array([queue] * len(good), pa.string()),
                    pa.array([row[0] for row in good], pa.int64()),
                    pa.array([row[1] for row in good], pa.binary()),
                ],
                schema=SCHEMA,
            )


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
            stream = reader._stream
            if isinstance(stream, MicroBatchStream):
                held = stream._receiver.held
                with held.changed:  # counted with each change, as a sum over many queues is slow
                    assert held.bytes == sum(held.bytes_of(queue) for queue in held.buffers)
            reader.stop()


def numbers(count: int, begin: int = 0) -> list[bytes]:
    """Bodies of the same length, each with its number."""
    return [b"%06d" % number for number in range(begin, begin + count)]


def count_looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the consumer of each queue has looked at its credit; none waits long before it looks again."""
    monkeypatch.setattr(credit, "IDLE_SECONDS", 0.05)
    looked: Counter[str] = Counter()
    regulate = credit.CreditFlowControl.regulate

    def counted(self: credit.CreditFlowControl, *args: Any, **options: Any) -> None:
        regulate(self, *args, **options)
        looked[self._queue] += 1

    monkeypatch.setattr(credit.CreditFlowControl, "regulate", counted)
    return looked
