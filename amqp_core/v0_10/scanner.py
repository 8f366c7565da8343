"""Splits a received byte stream of 0-10 into blocks of message transfers and other frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_core.scanning import LARGEST_MESSAGE_BYTES, BlockScanner
from amqp_core.v0_10._scan import FRAME_HEADER, scan

if TYPE_CHECKING:
    from amqp_core.scanning import Scan


class Scanner(BlockScanner):
    """The :class:`~amqp_core.scanning.BlockScanner` of message.transfer on one channel. Not thread-safe."""

    frame_header = FRAME_HEADER

    def __init__(self, channel: int, max_message_bytes: int = LARGEST_MESSAGE_BYTES) -> None:
        super().__init__(max_message_bytes)
        self._channel = channel

    def _walk(self, data: bytes, start: int, inside: int, max_frame_size: int) -> Scan:
        return scan(data, start, self._channel, max_frame_size, inside)

    def _frame_size(self, data: bytes, at: int) -> int:
        return int.from_bytes(data[at + 2 : at + 4])

    def _continues(self, data: bytes, at: int) -> bool:
        channel = data[at + 6] << 8 | data[at + 7]
        return data[at + 5] & 15 == 1 and channel == self._channel and data[at] & 0x0A != 0x0A

    def _pass_by(self, data: bytes, at: int) -> bool:
        return data[at] & 5 == 5

    def _ends_block(self, data: bytes, at: int) -> bool:
        return data[at + 5] & 15 == 1  # a command is never inside a transfer; controls may be, and stay in its bytes
