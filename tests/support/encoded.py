"""Encoded maps of rows: whole, and in the parts that are joined with the other parts of a message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from amqp_spark.arrow.rows import values
from amqp_spark.arrow.rows.dialect import AMQP_0_10
from amqp_spark.arrow.rows.row_bytes import join

if TYPE_CHECKING:
    from amqp_spark.arrow.columns.conversion import Errors


def encode_map(column: Any, kind: Any) -> tuple[Any, Errors]:
    """Encode for 0-10; the joined parts, their sizes and the errors are the same."""
    whole, errors = values.encode_map(column, kind, AMQP_0_10)
    parts = values.map_parts(column, kind, AMQP_0_10)
    if parts is not None:
        run, wrong = parts
        assert wrong == errors
        rows = join(*run.pieces()).to_pylist()
        for row, octets in enumerate(whole.to_pylist()):
            assert row in errors or rows[row] == octets
        assert np.broadcast_to(run.size, len(rows)).tolist() == [len(row or b"") for row in rows]
    return whole, errors
