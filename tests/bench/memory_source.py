"""The floor of Spark's Python stream API: a source whose messages come over a loopback socket into its own memory.

``latestOffset(start, limit)`` counts what is there, ``partitions`` puts the bytes inside one partition, ``read`` makes
one Arrow batch: nothing that a source could leave out. Without a port it never has anything.
"""

from __future__ import annotations

import socket
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import StructType

# Workers need not find this module on their path.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

SCHEMA = "body BINARY, routing_key STRING"
_SIZE_BYTES = 4  # before each message


@dataclass
class Messages(InputPartition):
    """Messages inside their partition."""

    bodies: list[bytes]
    value = None


class MemorySource(DataSource):
    """``format("bench_memory")``; option ``port`` is where :class:`Feed` listens."""

    @classmethod
    def name(cls) -> str:
        return "bench_memory"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        del schema
        return MemoryReader(int(self.options.get("port", "0")))


class MemoryReader(DataSourceStreamReader):
    """Counts messages; an offset is how many there were."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._bodies: list[bytes] = []
        self._thread: threading.Thread | None = None

    def __getstate__(self) -> dict[str, object]:
        return {"_port": self._port, "_bodies": [], "_thread": None}

    def initialOffset(self) -> dict:  # type: ignore[type-arg]
        return {"count": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxBytes(64 << 20)

    def latestOffset(self, start: dict, limit: ReadLimit) -> dict:  # type: ignore[type-arg]
        del start, limit
        if self._thread is None and self._port:
            self._thread = threading.Thread(target=self._receive, daemon=True)
            self._thread.start()
        return {"count": len(self._bodies)}

    def partitions(self, start: dict, end: dict) -> Sequence[InputPartition]:  # type: ignore[type-arg]
        return [Messages(self._bodies[start["count"] : end["count"]])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Messages)
        bodies = partition.bodies
        yield pa.RecordBatch.from_arrays(
            [pa.array(bodies, pa.binary()), pa.array(["memory"] * len(bodies), pa.string())], ["body", "routing_key"]
        )

    def _receive(self) -> None:
        with socket.create_connection(("127.0.0.1", self._port)) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream = sock.makefile("rb")
            while head := stream.read(_SIZE_BYTES):
                self._bodies.append(stream.read(int.from_bytes(head, "big")))


class Feed:
    """Sends messages to a :class:`MemorySource`; a context manager."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(60)
        self._peer: socket.socket | None = None

    @property
    def port(self) -> int:
        """For the option of that name."""
        return int(self._server.getsockname()[1])

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._peer is not None:
            self._peer.close()
        self._server.close()

    def publish(self, body: bytes) -> None:
        """Send one message; the first waits for the reader to connect."""
        if self._peer is None:
            self._peer, _ = self._server.accept()
            self._peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._peer.sendall(len(body).to_bytes(_SIZE_BYTES, "big") + body)
