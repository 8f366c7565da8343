"""What a task has prepared: the answer to the driver, and the marker in the transaction that proves its commit."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final, Self

from amqp_spark.errors import StateError
from amqp_spark.state.records import DecidedBranch

VERSION: Final = 1
BATCH_WRITES: Final = "batch write"
"""The lineage of what is written outside of streams."""
_TYPES: Final = {"lineage": str, "batch": int, "partition": int, "xid": str, "rows": int, "digest": str}


@dataclass(frozen=True, slots=True)
class Prepared:
    """The transaction branch of one task.

    Attributes:
        lineage: Spark's query id, or :data:`BATCH_WRITES`.
        batch, partition: the task.
        xid: as text; empty when there were no rows, and hence no branch.
        rows: how many rows the task had, discarded ones included.
        digest: of their encoded frames, in order.
    """

    lineage: str
    batch: int
    partition: int
    xid: str = ""
    rows: int = 0
    digest: str = ""

    @property
    def decided(self) -> DecidedBranch:
        """How a decision names it."""
        return DecidedBranch(self.xid, self.partition, self.rows, self.digest)

    def dump(self) -> bytes:
        """The body of its marker."""
        return json.dumps({"version": VERSION, **asdict(self)}, separators=(",", ":")).encode()

    @classmethod
    def load(cls, body: bytes) -> Self:
        """Read :meth:`dump`.

        Raises:
            StateError: it is something else.
        """
        try:
            value = json.loads(body)
        except ValueError:
            value = None
        if not isinstance(value, dict) or value.pop("version", None) != VERSION:
            raise StateError(f"a marker ({len(body)} bytes) was not written by amqp_spark, or by a newer version of it")
        if {name: type(each) for name, each in value.items()} != _TYPES:
            raise StateError(f"a marker does not have exactly {', '.join(_TYPES)}, each of its type")
        return cls(**value)


def same_rows(one: Prepared | DecidedBranch, other: Prepared | DecidedBranch) -> bool:
    """Whether two attempts at a partition have written the same."""
    return (one.rows, one.digest) == (other.rows, other.digest)
