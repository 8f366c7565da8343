"""Assign the transfers of a block to subscriptions, by the destination of message.transfer.

A block may mix destinations. The scanner compares the command frame of each transfer with the previous one and lists
those that differ (:attr:`Block.changes`), so that only these are parsed: usually one per block.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import TYPE_CHECKING

from amqp_core.blocks import runs
from amqp_core.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqp_core.blocks import Block

_HEADER_SIZE = 12
_frame = Struct(">BBHxBH").unpack_from  # flags, type, size, track, channel
# class, code, session header, packing flags, destination: the needed part is never longer
_LONGEST = 2 + 256 + 2 + 256


def by_destination(block: Block) -> Iterator[tuple[str, Block]]:
    """Cut a block into runs of transfers with one destination each, in order, up to an unreadable destination."""
    return runs(block, destination_of)


def destination_of(frames: bytes, start: int) -> str:
    """Return the destination of the transfer that begins at ``start``, without decoding anything else.

    Controls may lie before and between its frames, and its command segment may have several frames.
    """
    command = _command_segment(frames, start)
    flags = 3 + int.from_bytes(command[2:3])  # behind class, code and session header: the packing flags, two bytes
    begin = flags + 3
    if flags + 2 <= len(command) and not command[flags] & 1:
        return ""
    end = begin + int.from_bytes(command[begin - 1 : begin])
    if end > len(command):
        raise DecodeError("message.transfer: truncated before its destination", start)
    return command[begin:end].decode("utf-8", "replace")


def _command_segment(frames: bytes, start: int) -> bytes:
    """The command segment of the first transfer from ``start`` on, up to the length that is needed."""
    at = start
    command = b""
    try:
        while True:
            flags, kind, size, track, _ = _frame(frames, at)
            end = at + size
            if size < _HEADER_SIZE or end > len(frames):
                raise DecodeError(f"a frame of {size} bytes does not fit the block", at)
            if track & 15 == 1:
                payload = frames[at + _HEADER_SIZE : end]
                if flags & 0x0A == 0x0A:
                    command = payload if payload.startswith(b"\x04\x01") else b""
                elif command and kind == 1:
                    command += payload
                elif command:
                    return command
                if command and (flags & 1 or len(command) >= _LONGEST):
                    return command
            at = end
    except struct_error:
        raise DecodeError("the block ends inside a transfer", start) from None
