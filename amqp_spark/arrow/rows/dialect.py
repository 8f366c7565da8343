"""Wire types of values in maps and lists: those of 0-10 (map, list), and those of 0-9-1 (table, array).

In both a container is its size in 4 bytes and its contents, an entry of a map is a key of at most 255 bytes, preceded
by its size in one byte, a type code of one byte and the value, and an item of a list is a type code and the value.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from amqp_core.v0_10 import type_codes as code


class Dialect(NamedTuple):
    """Type codes of a protocol, and how it differs."""

    map: int
    list: int
    void: int
    boolean: int
    tinyint: int
    smallint: int
    integer: int
    bigint: int
    float: int
    double: int
    text: int
    binary: int
    """Preceded by a size of 4 bytes."""
    uuid: int | None
    """16 bytes; None: it is sent as text."""
    text_size: int
    """Bytes of the size that precedes a text."""
    longest_text: int
    is_counted: bool
    """Whether the number of entries or items precedes the contents of maps and lists."""
    is_finite: bool
    """Whether numbers must be finite: RabbitMQ closes the connection at NaN and infinities."""


AMQP_0_10: Final = Dialect(
    map=code.MAP,
    list=code.LIST,
    void=code.VOID,
    boolean=code.BOOLEAN,
    tinyint=code.INT8,
    smallint=code.INT16,
    integer=code.INT32,
    bigint=code.INT64,
    float=code.FLOAT,
    double=code.DOUBLE,
    text=code.STR16,
    binary=code.VBIN32,
    uuid=code.UUID_,
    text_size=2,
    longest_text=0xFFFF,
    is_counted=True,
    is_finite=False,
)
"""Map and list of 0-10 (section 3.3.1)."""
AMQP_0_9: Final = Dialect(
    map=ord("F"),
    list=ord("A"),
    void=ord("V"),
    boolean=ord("t"),
    tinyint=ord("b"),
    smallint=ord("s"),
    integer=ord("I"),
    bigint=ord("l"),
    float=ord("f"),
    double=ord("d"),
    text=ord("S"),
    binary=ord("x"),
    uuid=None,
    text_size=4,
    longest_text=0x7FFF_FFFF,
    is_counted=False,
    is_finite=True,
)
"""Table and array of 0-9-1 (section 4.2.5.5), with those letters that every broker reads in one way and keeps."""
