"""Frames with the ends of their transfers, as the receiver's scanner passes them on."""

from __future__ import annotations

from amqp_core.v0_10._scan import scan
from amqp_spark.arrow.decode import Chunk


def chunk_of(frames: bytes) -> Chunk:
    """Make a chunk of whole transfers on channel 0; bytes after the last one stay in the frames."""
    found = scan(frames, 0, 0, 65535)
    assert found.error is None
    return Chunk.of(frames, found.ends)
