"""The decoder of each protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from amqp_spark.arrow.columns.dialect import AMQP_0_9, AMQP_0_10
from amqp_spark.arrow.v0_9.decode import columns as columns_0_9
from amqp_spark.arrow.v0_9.decode import located as located_0_9
from amqp_spark.arrow.v0_10.decode import columns as columns_0_10
from amqp_spark.arrow.v0_10.decode import located as located_0_10

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql import types as t

    from amqp_spark.arrow.columns.batch import Batch, Build
    from amqp_spark.arrow.columns.dialect import Dialect
    from amqp_spark.arrow.columns.located import Chunk, Located


class Decoder(NamedTuple):
    """The decoder of one protocol."""

    name: str
    locate: Callable[[Chunk], Located]
    """Finds the parts of every transfer of a chunk; DecodeError: its ends are not those of its frames."""
    batch: Callable[[Located, range, str, int], Batch]
    """Some rows of a chunk, of a queue, from a position on."""
    builder: Callable[[t.StructField, pa.DataType, str], Build]
    """The function that makes a column; with the unit of times."""
    dialect: Dialect


_0_9_1: Final = Decoder("0-9-1", located_0_9.locate, columns_0_9.Batch, columns_0_9.builder, AMQP_0_9)
_0_10: Final = Decoder("0-10", located_0_10.locate, columns_0_10.Batch, columns_0_10.builder, AMQP_0_10)
DECODERS: Final = {"0-10": _0_10, "0-9-1": _0_9_1, "0-9": _0_9_1}
"""By the name of the protocol, see :attr:`amqp_core.api.Client.protocol`."""
