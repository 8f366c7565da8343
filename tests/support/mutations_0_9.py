"""Damaged payloads of AMQP 0-9-1, made from valid ones by a seeded generator: for tests, and for long runs by hand.

Usage: python -m tests.support.mutations_0_9 [COUNT [SEED]]
"""

from __future__ import annotations

import random
import sys
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from amqp_core.errors import DecodeError
from amqp_core.typed_values import Datetime, Typed
from amqp_core.v0_9 import spec
from amqp_core.v0_9 import type_codes as v
from amqp_core.v0_9._read import read_array, read_array_typed, read_table, read_table_typed
from amqp_core.v0_9._write import write_array, write_table
from amqp_core.v0_9.unserved import spec as spec_apart
from specs.facts_0_9 import APART, Method, Properties
from tests.support.values_0_9 import MODEL, codec_of

if TYPE_CHECKING:
    from collections.abc import Callable

TABLE: dict[str, object] = {
    "text": "é",
    "binary": b"\xff",
    "bytes in text": Typed(v.LONG_STRING, b"\xff"),
    "bool": True,
    "int8": Typed(v.INT8, -1),
    "uint8": Typed(v.UINT8, 255),
    "int16": Typed(v.INT16, -1),
    "uint16": Typed(v.UINT16, 65535),
    "int": -1,
    "uint32": Typed(v.UINT32, 2**32 - 1),
    "long": 2**40,
    "float": Typed(v.FLOAT, 0.5),
    "double": 0.1,
    "decimal": Decimal("-1.50"),
    "time": Datetime(-1),
    "void": None,
    "array": [1, "x", [None, {"a": True}]],
    "table": {"nested": {"": []}},
}
"""A table with every type that is written."""

_SAMPLES: dict[str, tuple[Any, ...]] = {
    "bit": (True, False),
    "octet": (0, 255),
    "short": (0, 65535),
    "long": (0, 2**32 - 1),
    "longlong": (0, 2**64 - 1),
    "shortstr": ("", "é" * 127),
    "longstr": (b"", b"\xff" * 40),
    "timestamp": (0, -1),
    "table": ({}, TABLE),
}
_OCTETS = (0, 1, 0x7F, 0x80, 0xFE, 0xFF, *b"tbBsuUIilLfdDSxATFVcCk")


def sampled_payloads(owner: Method | Properties) -> list[bytes]:
    """Two payloads: with the first and with the last sample of each field."""
    module = spec_apart if owner.cls in APART else spec
    kind = getattr(module, owner.python)
    codec = codec_of(owner)
    out = []
    for index in (0, 1):
        value = kind(**{field.attr: _SAMPLES[field.wire][index] for field in owner.fields})
        out.append(codec.encode_header(value, index) if isinstance(owner, Properties) else codec.encode_method(value))
    return out


def mutated(payload: bytes, rng: random.Random) -> bytes:
    """The payload with one to four damages."""
    raw = bytearray(payload)
    for _ in range(rng.randint(1, 4)):
        if not raw:
            break
        at = rng.randrange(len(raw))
        match rng.randrange(6):
            case 0:
                raw[at] = rng.choice(_OCTETS)
            case 1:
                raw[at] = rng.randrange(256)
            case 2:
                del raw[at]
            case 3:
                raw.insert(at, rng.choice(_OCTETS))
            case 4:
                del raw[at : at + rng.randrange(1, 9)]
            case _:
                other = rng.randrange(len(raw))
                raw[at:at] = raw[other : other + rng.randrange(1, 17)]
    return bytes(raw)


def attempt(function: Callable[..., Any], *arguments: Any) -> bool:
    """Whether the bytes were read; anything but a documented error leaves."""
    data = arguments[0]
    try:
        function(*arguments)
    except DecodeError as error:
        refused = error
    else:
        return True
    assert refused.reason
    assert 0 <= refused.offset <= len(data)
    return False


def run(count: int, seed: int) -> tuple[int, int]:
    """Damage payloads of every method and content header, tables and arrays; how many were read and refused."""
    rng = random.Random(seed)
    valid: list[tuple[Callable[..., Any], bytes, tuple[int, ...]]] = []
    for method in MODEL.methods:
        valid += [(codec_of(method).decode_method, payload, ()) for payload in sampled_payloads(method)]
    for properties in MODEL.properties:
        valid += [(codec_of(properties).decode_header, payload, ()) for payload in sampled_payloads(properties)] * 10
    table, array = write_table(TABLE), write_array([TABLE, *TABLE.values()])
    valid += [(read_table, table, (0,)), (read_table_typed, table, (0,))] * 40
    valid += [(read_array, array, (0,)), (read_array_typed, array, (0,))] * 40
    accepted = 0
    for _ in range(count):
        decode, payload, rest = rng.choice(valid)
        accepted += attempt(decode, mutated(payload, rng), *rest)
    return accepted, count - accepted


if __name__ == "__main__":
    total = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    read_back, refused_count = run(total, int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    print(f"{total} mutated inputs: {read_back} read, {refused_count} refused with DecodeError, nothing else left")
