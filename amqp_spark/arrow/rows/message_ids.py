"""Message ids of `stableMessageId`: the place of a row, which is the same when its task is tried again."""

from __future__ import annotations

from hashlib import sha1
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from amqp_spark.arrow.rows.row_bytes import packed
from amqp_spark.arrow.without_pandas import from_numpy, single

if TYPE_CHECKING:
    from amqp_spark.arrow.rows.row_bytes import Array

NAMESPACE: Final = UUID("37248334-e2eb-5e2a-b2f2-16eac929ff1a")
"""Of the UUIDs that are made of places of rows: itself one of version 5, of ``amqp-spark stableMessageId`` as URL."""


class Partition(NamedTuple):
    """The rows of one task: ``writer`` is the id of a streaming query, or a `transactionalId`."""

    writer: str
    batch_id: int
    partition: int

    def message_ids(self, first_row: int, rows: int) -> Array:
        """The text ``writer-batch-partition-row`` of consecutive rows as STRING."""
        numbers = from_numpy(np.arange(first_row, first_row + rows)).cast(pa.string())
        prefix = single(f"{self.writer}-{self.batch_id}-{self.partition}-")[0]
        return cast("Array", cast("Any", pc).binary_join_element_wise(prefix, numbers, single("")[0]))


def as_uuids(texts: Array) -> Array:
    """The UUID of version 5 of every text (RFC 9562 section 5.5) as BINARY, for protocols that have no other ids."""
    uuids = bytearray()
    items: list[str] = cast("Any", texts).to_pylist()
    for text in items:
        raw = bytearray(sha1(NAMESPACE.bytes + text.encode(), usedforsecurity=False).digest()[:16])
        raw[6] = raw[6] & 0x0F | 0x50
        raw[8] = raw[8] & 0x3F | 0x80
        uuids += raw
    return packed(pa.py_buffer(uuids), np.arange(0, len(uuids) + 1, 16))
