"""Frames as the receiver hands them on: with the ends of their transfers, which its scanner has found."""

from __future__ import annotations

from amqp_core.v0_10._scan import scan
from amqp_spark.arrow.decode import Chunk


def chunk_of(frames: bytes) -> Chunk:
    """Whole transfers on channel 0; what lies behind the last one stays in the frames."""
    found = scan(frames, 0, 0, 65535)
    assert found.error is None
    return Chunk.of(frames, found.ends)
