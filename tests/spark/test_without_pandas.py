"""Arrow arrays made without the functions of Arrow that import pandas, against those functions."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from amqp_spark.arrow import without_pandas
from amqp_spark.arrow.columns import arrays
from tests.bench import bench_encode

if TYPE_CHECKING:
    from pathlib import Path

NUMBERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint64, np.float32, np.float64]


def some(kind: Any, rows: int) -> Any:
    source = np.random.default_rng(rows)
    if kind is np.bool_:
        return source.integers(0, 2, rows).astype(np.bool_)
    return source.integers(0, 100, rows).astype(kind)


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 1000])
@pytest.mark.parametrize("kind", [*NUMBERS, np.bool_])
def test_numbers_become_columns_and_come_back(kind: Any, rows: int) -> None:
    values = some(kind, rows)
    column = without_pandas.from_numpy(values)
    column.validate(full=True)
    assert column.equals(pa.array(values))
    assert column.null_count == 0
    assert np.array_equal(without_pandas.to_numpy(column), values)
    assert np.array_equal(without_pandas.to_numpy(column[3:]), values[3:])

    null = some(np.bool_, rows)
    with_null = without_pandas.from_numpy(values, null)
    with_null.validate(full=True)
    assert with_null.equals(pa.array(values, mask=null))
    assert with_null.null_count == null.sum()


def test_numbers_that_do_not_lie_side_by_side() -> None:
    values = np.arange(20)[::3]
    assert without_pandas.from_numpy(values).equals(pa.array(values))
    assert without_pandas.from_numpy(values > 5).to_pylist() == [False, False, True, True, True, True, True]


@pytest.mark.parametrize("text", ["", "orders", "für \N{SNOWMAN}"])
def test_a_text_in_every_row(text: str) -> None:
    assert without_pandas.single(text)[0].as_py() == text
    column = arrays.repeated(text, 3, np.array([False, True, False]))
    assert (column.type, column.to_pylist()) == (pa.string(), [text, None, text])
    assert arrays.repeated(text, 0).to_pylist() == []


DECODING = """
import sys
from amqp_core.v0_9._scan import scan as scan_0_9
from amqp_core.v0_10._scan import scan
from amqp_spark.arrow.decode import DEFAULT_SCHEMA, Chunk, ColumnPlan
from tests.bench import bench_decode, bench_rabbitmq_decode

for rows in (3, 5000):
    chunks = {
        "0-10": [(frames, scan(frames, 0, 0, 65535).ends) for frames in bench_decode.blocks(rows)],
        "0-9-1": [(frames, scan_0_9(frames, 0, 1, 131072)[0].ends) for frames in bench_rabbitmq_decode.blocks(rows)],
    }
    for schema in (bench_decode.SCHEMA, DEFAULT_SCHEMA):
        plan = ColumnPlan.build(schema, mode="FAILFAST", timestamp_unit="auto")
        for protocol, found in chunks.items():
            parts = [Chunk.of(frames, ends, protocol=protocol) for frames, ends in found]
            assert sum(batch.num_rows for batch in plan.batches(parts, queue="ticks", first_position=0)) == rows
assert "pyarrow.compute" in sys.modules
assert "pandas" not in sys.modules, "each new worker would import pandas"
"""


def test_decoding_does_not_import_pandas() -> None:
    subprocess.run([sys.executable, "-c", DECODING], check=True, timeout=120)


ENCODING = """
import sys
import pyarrow as pa
from pyspark.sql.types import StructType
from amqp_spark.arrow.encode import MessagePlan, TaskId
from amqp_spark.options import SinkOptions
from tests.bench import bench_encode, bench_rabbitmq_encode

options = {"url": "amqp://localhost/default", "exchange": "amq.topic"}
stable = options | {"stableMessageId": "true", "stampHeaders": "true"}
for number, schema in enumerate((bench_encode.SCHEMA, *bench_encode.OTHER_SCHEMAS.values())):
    with pa.ipc.open_file(f"{sys.argv[1]}/{number}") as batches:
        batch = batches.get_batch(0)
    without = StructType([field for field in schema if field.name != "message_id"])
    plans = [
        (MessagePlan.build(schema, SinkOptions.parse(options)), batch),
        (MessagePlan.build(without, SinkOptions.parse(stable)), batch.drop_columns(["message_id"])),
    ]
    for plan, rows in plans:
        for frames in (bench_encode.FRAMES, bench_rabbitmq_encode.FRAMES):
            encoder = plan.encoder(frames, TaskId(query_id="q", batch_id=1, partition=0))
            assert sum(len(block.ends) for block in encoder.blocks(rows, 0)) == rows.num_rows
    assert "pandas" not in sys.modules, f"each new worker would import pandas for {schema.simpleString()}"
"""


def test_encoding_does_not_import_pandas(tmp_path: Path) -> None:
    for number, schema in enumerate((bench_encode.SCHEMA, *bench_encode.OTHER_SCHEMAS.values())):
        (batch,) = bench_encode.batches(schema, 1)
        with pa.ipc.new_file(str(tmp_path / str(number)), batch.schema) as file:
            file.write_batch(batch)
    subprocess.run([sys.executable, "-c", ENCODING, str(tmp_path)], check=True, timeout=120)
