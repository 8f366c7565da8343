"""Columns as properties of the content header, of every row of a block at once (0-9-1 section 4.2.6.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import pyarrow as pa

from amqp_spark.arrow.rows.fields import LARGEST, NUMBERS, Fields, integers
from amqp_spark.arrow.rows.row_bytes import lengths, number, present
from amqp_spark.arrow.rows.row_errors import blame

if TYPE_CHECKING:
    from amqp_spark.arrow.layout import Property
    from amqp_spark.arrow.rows.row_bytes import Array
    from amqp_spark.arrow.rows.row_errors import Blamed

_REPLY_TO: Final = "reply_to"
_TTL: Final = "ttl"
_EXCHANGE: Final = "exchange"


class PropertyList(Fields):
    """The properties of every row.

    ``now_ms`` is added to every time to live, where the expiration is a time (0: it is a duration); ``drops``: the
    exchange of reply_to, which has no place, is left out.
    """

    def __init__(self, rows: int, blamed: Blamed, *, now_ms: int, drops: bool) -> None:
        super().__init__(rows, blamed)
        self._now_ms = now_ms
        self._drops = drops

    def constant(self, field: Property, value: int | str) -> None:
        """Add a property that is the same in every row."""
        if field.name == _TTL:
            value = str(min(int(value) + self._now_ms, LARGEST))
        if isinstance(value, int):
            self.add(field, None, number(NUMBERS[field.width], value))
        else:
            raw = value.encode()
            self.add(field, None, number(NUMBERS[-field.width], len(raw)), raw)

    def column(self, field: Property, column: Array, unit: str) -> None:
        """Add a property with the row's own value; NULL leaves it out. ``unit`` is that of TIMESTAMP columns."""
        if column.null_count == len(column):
            return
        if field.name == _TTL:
            self._ttl(field, column)
        elif field.name == _REPLY_TO:
            self._reply_to(field, cast("pa.StructArray", column))
        elif field.wire == "table":
            self.add_encoded(field, column)
        elif field.wire == "timestamp":
            self.add_time(field, column, seconds=unit != "ms")
        elif field.width > 0:
            self.add_number(field, column)
        else:
            self.add_sized(field, column, field.name)

    def _ttl(self, field: Property, column: Array) -> None:
        """The time to live as text in decimal digits."""
        values = integers(column).astype(np.int64)
        for row in np.flatnonzero(values < 0).tolist():
            self.blamed.setdefault(row, (field.name, f"is {values[row]}; 0 and above are allowed"))
        if self._now_ms:
            values = np.minimum(values, LARGEST - self._now_ms) + self._now_ms
        there = present(column)
        texts: Any = pa.array(values, mask=None if there is None else ~there).cast(pa.string())
        self.add_sized(field, texts, field.name)

    def _reply_to(self, field: Property, column: pa.StructArray) -> None:
        """The routing key; the default exchange, whose name is empty, is what a reply-to without exchange means."""
        parts = dict(zip([part.name.lower() for part in column.type], column.flatten(), strict=True))
        exchange = parts.get(_EXCHANGE)
        if exchange is not None and not self._drops:
            reason = (
                "has a value, and AMQP 0-9-1 has no exchange in reply_to: set the exchange to NULL, or set "
                "onUnsupported=drop"
            )
            blame(self.blamed, lengths(exchange) > 0, f"{field.name}.{_EXCHANGE}", reason)
        key = parts.get("routing_key")
        if key is not None and key.null_count < len(key):
            self.add_sized(field, key, f"{field.name}.routing_key")
