"""Columns as properties of the content header, of every row of a block at once (0-9-1 section 4.2.6.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import pyarrow as pa

from amqp_spark.arrow.rows.fields import LARGEST, NUMBERS, Fields, integers
from amqp_spark.arrow.rows.row_bytes import lengths, number, present
from amqp_spark.arrow.rows.row_errors import blame
from amqp_spark.arrow.without_pandas import from_numpy, to_numpy

if TYPE_CHECKING:
    from amqp_spark.arrow.layout import Property
    from amqp_spark.arrow.rows.row_bytes import Array, Mask, Numbers
    from amqp_spark.arrow.rows.row_errors import Blamed

_REPLY_TO: Final = "reply_to"
TTL: Final = "ttl"
EXPIRATION: Final = "expiration"
"""Columns of the property expiration: a duration, or a time where the broker takes it as one."""
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
        if field.name == TTL:
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
        if field.name == TTL:
            self._ttl(field, column)
        elif field.name == _REPLY_TO:
            self._reply_to(field, cast("pa.StructArray", column))
        elif field.wire == "timestamp":
            self.add_time(field, column, seconds=unit != "ms")
        elif field.width > 0:
            self.add_number(field, column)
        else:
            self.add_sized(field, column, field.name)

    def _ttl(self, field: Property, column: Array) -> None:
        """The time to live."""
        self._decimal(field, self._durations(column), present(column))

    def expiration(self, field: Property, column: Array, ttl: Array | None, constant: int | str | None) -> None:
        """Add the property as a time in milliseconds since 1970: that of a column, elsewhere the time to live."""
        there = to_numpy(column.is_valid())
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
            times = integers(column) // 1000
        else:
            times = integers(column)
        self._refuse_negative(EXPIRATION, times)
        if constant is not None:  # the option takes the place of the column ttl
            ttl = from_numpy(np.full(len(column), int(constant), np.int64))
        if ttl is not None:
            times = np.where(there, times, self._durations(ttl))
            there = there | to_numpy(ttl.is_valid())
        self._decimal(field, times, there)

    def _durations(self, column: Array) -> Numbers:
        """Times to live as they are sent."""
        values = integers(column).astype(np.int64)
        self._refuse_negative(TTL, values)
        return np.minimum(values, LARGEST - self._now_ms) + self._now_ms if self._now_ms else values

    def _refuse_negative(self, name: str, values: Numbers) -> None:
        for row in np.flatnonzero(values < 0).tolist():
            self.blamed.setdefault(row, (name, f"is {values[row]}; 0 and above are allowed"))

    def _decimal(self, field: Property, values: Numbers, there: Mask | None) -> None:
        """Add numbers as text in decimal digits."""
        texts: Any = from_numpy(values, None if there is None else ~there).cast(pa.string())
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
