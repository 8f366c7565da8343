"""Whether a received message was delivered before, without decoding it (0-10 section message, delivery-properties)."""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from amqp_core.api import Block

_frame: Final = Struct(">xBH").unpack_from  # type, size
_struct: Final = Struct(">IHB").unpack_from  # size, code, first octet of the packing flags
_FRAME_HEADER: Final = 12
_HEADER_SEGMENT: Final = 2
_DELIVERY_PROPERTIES: Final = 0x0401
_REDELIVERED: Final = 0x04
"""The third of the flags: a bit is present exactly if it is set."""
_MOST_FRAMES: Final = 8
"""Frames in front of a header that are looked at: the command, and some that belong to no transfer."""


def first_is_redelivered(block: Block) -> bool:
    """Whether the first transfer of a block is marked as delivered before; False if that cannot be told at once."""
    frames, at = block.frames, 0
    try:
        for _ in range(_MOST_FRAMES):
            kind, size = _frame(frames, at)
            if kind == _HEADER_SEGMENT:
                _, code, flags = _struct(frames, at + _FRAME_HEADER)
                return code == _DELIVERY_PROPERTIES and bool(flags & _REDELIVERED)
            at += size
    except struct_error:
        pass
    return False
