"""Runs of transfers, made one by one, for the tests of the publisher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import encode_command, encode_header
from amqp_core.v0_10.framing import BODY, COMMAND, HEADER, TRACK_COMMAND, Assembler, encode_assembly, parse_frame
from amqp_core.v0_10.publisher import Transfers

if TYPE_CHECKING:
    from collections.abc import Iterable


def transfer(
    body: bytes, exchange: str = "", routing_key: str = "q", *, accept_mode: int = 0, **delivery: Any
) -> bytes:
    """One message.transfer with its frames, for the largest frame size; ``delivery`` are its delivery properties."""
    command = spec.MessageTransfer(destination=exchange, accept_mode=accept_mode, acquire_mode=1)
    segments = [
        (COMMAND, encode_command(command, False)),
        (HEADER, encode_header(spec.DeliveryProperties(routing_key=routing_key, **delivery), spec.MessageProperties())),
    ]
    if body:
        segments.append((BODY, body))
    return b"".join(encode_assembly(0, TRACK_COMMAND, segments, 65535))


def run(
    bodies: Iterable[bytes], exchange: str = "", routing_key: str = "q", *, tag: object = None, **settings: Any
) -> Transfers:
    """A run of transfers with these bodies; ``settings`` are those of :func:`transfer`."""
    frames, ends = bytearray(), []
    for body in bodies:
        frames += transfer(body, exchange, routing_key, **settings)
        ends.append(len(frames))
    return Transfers(bytes(frames), ends, tag)


def numbered(count: int, first: int = 0, *, size: int = 0, tag: object = None) -> Transfers:
    """A run whose bodies are the numbers from ``first`` on, each filled up to ``size`` bytes."""
    return run((b"%d:" % number + bytes(size) for number in range(first, first + count)), tag=tag)


def number_of(body: bytes | None) -> int:
    """The number at the beginning of a body made by :func:`numbered`."""
    assert body is not None
    return int(body.partition(b":")[0])


def bodies_of(runs: Iterable[Transfers]) -> list[bytes]:
    """Decode runs; return the bodies, after checking the position of each transfer."""
    found = []
    for transfers in runs:
        data = bytes(transfers.frames)
        pos = 0
        for end in transfers.ends:
            assembler, assembly = Assembler(), None
            while assembly is None:
                parsed = parse_frame(data, pos, 65535)
                assert parsed is not None
                frame, pos = parsed
                assembly = assembler.receive(frame)
            assert pos == end, "a run does not end where a transfer ends"
            found.append(assembly.body or b"")
        assert pos == len(data), "a run has more bytes than transfers"
    return found


def numbers_of(runs: Iterable[Transfers]) -> list[int]:
    """The numbers of runs made by :func:`numbered`."""
    return [number_of(body) for body in bodies_of(runs)]
