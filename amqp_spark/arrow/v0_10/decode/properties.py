"""The structs in the headers of many messages: delivery- and message-properties, and reply-to.

Presence flags are compared as the 16-bit number on the wire: field 0 is 0x0100, field 8 is 0x0001 (0-10 section 3.4;
the byte order is that of the brokers).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from amqp_spark.arrow.columns.fields import FieldPlan, PackedFields
from amqp_spark.arrow.v0_10 import properties

if TYPE_CHECKING:
    from amqp_spark.arrow.columns.wire import Positions, Spans, Wire

_MOST_STRUCTS: Final = 64  # in one header; three kinds are defined
_LOW: Final = np.uint64(0xFFFF)


DELIVERY: Final = FieldPlan(properties.DELIVERY)
MESSAGE: Final = FieldPlan(properties.MESSAGE)
REPLY_TO: Final = FieldPlan(properties.REPLY_TO)


def structs(wire: Wire, begin: Positions, end: Positions, broken: dict[int, str]) -> tuple[PackedFields, PackedFields]:
    """Delivery- and message-properties of the header segments.

    Structs of other codes are skipped by their size.
    """
    rows = len(begin)
    delivery = PackedFields(wire, DELIVERY, rows, broken)
    message = PackedFields(wire, MESSAGE, rows, broken)
    alive = np.flatnonzero(begin < end)
    at, until = begin[alive], end[alive]
    for _ in range(_MOST_STRUCTS):
        if not len(alive):
            return delivery, message
        head = wire.read(">u8", at).astype(np.uint64)
        size = (head >> np.uint64(32)).astype(np.int64)
        code = ((head >> np.uint64(16)) & _LOW).astype(np.int64)
        flags = (head & _LOW).astype(np.int64)
        after = at + 4 + size
        code[size < 2] = 0  # an empty struct; the structs used here have a code and flags
        wrong = (after > until) | (size == 1) | ((size < 4) & ((code == DELIVERY.code) | (code == MESSAGE.code)))
        if wrong.any():
            for row in alive[wrong].tolist():
                broken.setdefault(row, "the structs of the header do not fit its segment")
            keep = ~wrong
            alive, at, until, code, flags, after = (x[keep] for x in (alive, at, until, code, flags, after))
        for packed in (delivery, message):
            mine = code == packed.layout.code
            if mine.all():
                packed.place(alive, at + 8, flags, after)
            elif mine.any():
                packed.place(alive[mine], at[mine] + 8, flags[mine], after[mine])
        more = after < until
        if more.all():
            at = after
        else:
            alive, at, until = alive[more], after[more], until[more]
    for row in alive.tolist():
        broken.setdefault(row, f"more than {_MOST_STRUCTS} structs in the header")
    return delivery, message


def reply_to(wire: Wire, spans: Spans, broken: dict[int, str]) -> PackedFields:
    """The reply-to structs inside message-properties: a 16-bit size, presence flags, fields."""
    packed = PackedFields(wire, REPLY_TO, len(spans.begin), broken)
    rows = spans.present()
    at, until = spans.begin[rows], spans.end[rows]
    tiny = until - at < 4  # no bytes, or no room for the flags: nothing is set
    if tiny.any():
        rows, at, until = rows[~tiny], at[~tiny], until[~tiny]
    packed.place(rows, at + 4, wire.size(2, at + 2), until)
    return packed
