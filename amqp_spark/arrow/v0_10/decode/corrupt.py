"""The column that reports, in mode PERMISSIVE, the misfits of a message and keeps the values its columns cannot hold.

A text that ``from_json`` reads with :data:`RECORD_SCHEMA` (Spark takes BINARY from base64)::

    {"reasons": {"body": "..."}, "body": "...", "application_headers": "..."}

``body`` and ``application_headers`` (the encoded map) are as received. A message that cannot be decoded has
``transfer`` instead, its frames. NULL if everything fits.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from amqp_spark.arrow.v0_10.decode.batch import encoded_headers
from amqp_spark.errors import UNDECODABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqp_spark.arrow.v0_10.decode.arrays import Array
    from amqp_spark.arrow.v0_10.decode.batch import Batch

DEFAULT_NAME: Final = "_corrupt_record"
"""Spark's default, unless its setting ``spark.sql.columnNameOfCorruptRecord`` differs."""
RECORD_SCHEMA: Final = "reasons MAP<STRING,STRING>, body BINARY, application_headers BINARY, transfer BINARY"


def records(batch: Batch, wrong: Mapping[int, Mapping[str, str]]) -> Array:
    """Make the column of a batch.

    Args:
        batch: the decoded messages.
        wrong: by row that does not fit, the reason of each column.

    Returns:
        A string array with one entry per row of the batch.
    """
    texts: list[str | None] = [None] * batch.rows
    whole = [row for row in sorted(wrong) if UNDECODABLE not in wrong[row]]
    rows = pa.array(whole, pa.int64())
    bodies = batch.bodies().take(rows).to_pylist() if whole else []
    headers = encoded_headers(batch).take(rows).to_pylist() if whole else []
    for row, body, header in zip(whole, bodies, headers, strict=True):
        texts[row] = _record(wrong[row], body=body, application_headers=header)
    for row in wrong.keys() - set(whole):
        texts[row] = _record(wrong[row], transfer=batch.transfer(row))
    return pa.array(texts, pa.string())


def _record(reasons: Mapping[str, str], **parts: bytes | None) -> str:
    kept = {name: base64.b64encode(part).decode() for name, part in parts.items() if part is not None}
    return json.dumps({"reasons": reasons} | kept)
