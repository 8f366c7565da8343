"""Values of headers as texts, a column at a time: the same as one by one."""

from __future__ import annotations

import math
import random
import struct

import numpy as np
from pyspark.sql import types as t

from amqp_spark.arrow.columns.values import float_text
from amqp_spark.arrow.decode import DEFAULT_SCHEMA, ColumnPlan
from tests.support import wire
from tests.support.choice import examples
from tests.support.received import batches_both_ways, chunk_of

HEADERS = t.StructType([field for field in DEFAULT_SCHEMA.fields if field.name == "application_headers"])
SIGNALLING_NAN = struct.unpack(">d", bytes.fromhex("7ff0000000000001"))[0]


def test_doubles_as_texts() -> None:
    chance = random.Random(7)
    limits = [0.0, 1e-4, 1e10, 1e15, 1e16, 5e-324, 2.0**-44, float("inf"), float("nan"), SIGNALLING_NAN]
    near = [math.nextafter(limit, towards) for limit in limits[:-1] for towards in (-math.inf, math.inf)]
    bits = [struct.unpack(">d", chance.randbytes(8))[0] for _ in range(examples(6000))]
    sizes = [chance.random() * 10 ** chance.randrange(-6, 18) for _ in range(examples(6000))]
    rounded = [round(chance.random() * 1000, chance.randrange(4)) for _ in range(examples(3000))]
    powers = [2.0**exponent for exponent in range(-1074, 1024)]
    values = [sign * value for value in (*limits, *near, *bits, *sizes, *rounded, *powers) for sign in (1, -1)]
    frames = b"".join(
        wire.transfer(wire.message(application_headers=wire.map_([(b"x", 0x33, struct.pack(">d", value))])))
        for value in values
    )
    plan = ColumnPlan.build(HEADERS, mode="FAILFAST", timestamp_unit="auto")
    found = [
        row["application_headers"] for batch in batches_both_ways(plan, [chunk_of(frames)]) for row in batch.to_pylist()
    ]
    assert found == [[("x", float_text(value))] for value in values]


def test_floats_as_texts() -> None:
    """Also the largest one, of which the first digits, rounded, are more than a float holds."""
    chance = random.Random(7)
    limits = [bytes.fromhex(each) for each in ("7f7fffff", "7f7ffffe", "ff7fffff", "00000001", "00800000", "3dcccccd")]
    bits = [*limits, *(chance.randbytes(4) for _ in range(examples(1000)))]
    frames = b"".join(wire.transfer(wire.message(application_headers=wire.map_([(b"x", 0x23, raw)]))) for raw in bits)
    plan = ColumnPlan.build(HEADERS, mode="FAILFAST", timestamp_unit="auto")
    found = [
        row["application_headers"] for batch in batches_both_ways(plan, [chunk_of(frames)]) for row in batch.to_pylist()
    ]
    assert found[0] == [("x", "3.4028235e+38")]
    shortest = [str(np.float32(struct.unpack(">f", raw)[0])) for raw in bits]
    assert [str(float(text)) for ((_, text),) in found] == [str(float(text)) for text in shortest]


def test_doubles_among_other_values() -> None:
    maps = [
        [(b"n", 0x21, struct.pack(">i", number)), (b"x", 0x33, struct.pack(">d", number / 4)), (b"v", 0xF0, b"")]
        for number in range(9)
    ]
    frames = b"".join(wire.transfer(wire.message(application_headers=wire.map_(each))) for each in maps)
    plan = ColumnPlan.build(HEADERS, mode="FAILFAST", timestamp_unit="auto")
    (batch,) = batches_both_ways(plan, [chunk_of(frames)])
    assert batch["application_headers"].to_pylist() == [
        [("n", str(number)), ("x", repr(number / 4)), ("v", None)] for number in range(9)
    ]
