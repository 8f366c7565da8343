"""Runs of published messages of AMQP 0-9-1, made one by one, for the tests of the publisher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amqp_core.transfer_ledger import Transfers
from amqp_core.v0_9 import spec
from amqp_core.v0_9._codec import encode_header, encode_method
from amqp_core.v0_9.driver import PUBLISHING
from amqp_core.v0_9.framing import encode_content
from amqp_core.v0_9.returned import read_published
from tests.support.runs import number_of

if TYPE_CHECKING:
    from collections.abc import Iterable

FRAME_MAX = 131072


def publish(body: bytes, exchange: str = "", routing_key: str = "q", *, mandatory: bool = True, **fields: Any) -> bytes:
    """The frames of one basic.publish; ``fields`` are its properties."""
    method = spec.BasicPublish(exchange=exchange, routing_key=routing_key, mandatory=mandatory)
    header = encode_header(spec.BasicProperties(**fields), len(body))
    return b"".join(encode_content(PUBLISHING, encode_method(method), header, body, FRAME_MAX))


def run(
    bodies: Iterable[bytes], exchange: str = "", routing_key: str = "q", *, tag: object = None, **settings: Any
) -> Transfers:
    """A run of messages with these bodies; ``settings`` are those of :func:`publish`."""
    frames, ends = bytearray(), []
    for body in bodies:
        frames += publish(body, exchange, routing_key, **settings)
        ends.append(len(frames))
    return Transfers(bytes(frames), ends, tag)


def numbered(count: int, first: int = 0, routing_key: str = "q", *, size: int = 0, **settings: Any) -> Transfers:
    """A run whose bodies are the numbers from ``first`` on, each filled up by ``size`` bytes."""
    bodies = (b"%d:" % number + bytes(size) for number in range(first, first + count))
    return run(bodies, routing_key=routing_key, **settings)


def numbers_of(runs: Iterable[Transfers]) -> list[int]:
    """The numbers of runs made by :func:`numbered`."""
    numbers = []
    for transfers in runs:
        start = 0
        for end in transfers.ends:
            numbers.append(number_of(read_published(transfers.frames[start:end]).body))
            start = end
    return numbers
