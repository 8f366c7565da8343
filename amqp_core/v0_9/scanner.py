"""Splits a received byte stream of 0-9 or 0-9-1 into blocks of deliveries and other frames."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from amqp_core.blocks import Block
from amqp_core.errors import DecodeError
from amqp_core.scanning import IN_TRANSFER, LARGEST_MESSAGE_BYTES, OUTSIDE, BlockScanner, Scan
from amqp_core.v0_9._scan import NO_HEADER, scan
from amqp_core.v0_9.framing import BODY, FRAME_END, FRAME_HEADER, HEADER, OVERHEAD, wrong_end

if TYPE_CHECKING:
    from collections.abc import Iterator

_tag = Struct(">Q").unpack_from
_TAG_SIZE = FRAME_HEADER + 4


class Scanner(BlockScanner):
    """The :class:`~amqp_core.scanning.BlockScanner` of basic.deliver on one channel. Not thread-safe.

    The first id of a block is the delivery tag of its first delivery; the tags of the others follow it. Every known
    broker counts deliveries by one; the specification does not promise it, so that a block is cut at a gap. Tags that
    do not ascend are an error: a message would be settled for another one.

    Of a block the first and the last tag are looked at: where tags ascend, and these are as far apart as there are
    deliveries, none is left out. Only a broker that exchanges tags within one block, and nowhere else, goes unnoticed.
    None is known: each numbers what it writes. To read every tag would cost a tenth of the time of a scan.
    """

    frame_header = FRAME_HEADER

    def __init__(self, channel: int, max_message_bytes: int = LARGEST_MESSAGE_BYTES) -> None:
        super().__init__(max_message_bytes)
        self._channel = channel
        self._route = channel.to_bytes(2)
        self._last_tag = 0  # of all deliveries so far
        self._left = NO_HEADER  # body bytes that the content under way still lacks

    def feed(self, chunk: bytes, max_frame_size: int) -> Iterator[Block | bytes]:
        """Process the next bytes as the base does; blocks have their delivery tags.

        Args:
            chunk: the bytes; all items must be taken before the next call.
            max_frame_size: the agreed frame-max in bytes, header and end octet included.
        """
        for item in super().feed(chunk, max_frame_size):
            if isinstance(item, Block):
                frames, ends = item.frames, item.ends
                item.first_id = delivery_tag(frames, 0)
                last = delivery_tag(frames, ends[-2]) if len(ends) > 1 else item.first_id
                if last - item.first_id != len(ends) - 1 or item.first_id <= self._last_tag:
                    yield from self._cut_at_gaps(item)
                    if self.error is not None:
                        return
                    continue
                self._last_tag = last
            yield item

    def _cut_at_gaps(self, block: Block) -> Iterator[Block]:
        """Cut a block into parts whose delivery tags follow each other, up to one that is not above those before."""
        frames, ends = block.frames, block.ends
        first = begin = 0  # of the part
        first_id, before = block.first_id, self._last_tag
        for index, start in enumerate((0, *ends[:-1])):
            tag = delivery_tag(frames, start)
            if index and tag != before + 1:
                part = block.part(first, index, begin, start)
                part.first_id = first_id
                yield part
                first, begin, first_id = index, start, tag
            if tag <= before:
                self.error = DecodeError(f"delivery tag {tag} follows {before}: the deliveries cannot be told apart")
                return
            before = self._last_tag = tag
        part = block.part(first, len(ends), begin, ends[-1])
        part.first_id = first_id
        yield part

    def _walk(self, data: bytes, start: int, inside: int, max_frame_size: int) -> Scan:
        if self._passing and data[start - 1] != FRAME_END:
            error = wrong_end(data[start - 1], start - 1)
            return Scan([], [], 0, start - 1, IN_TRANSFER, error, [])
        left = NO_HEADER if inside == OUTSIDE else self._left
        # brokers cut bodies only: a header has the size that it had in the frames of whoever published it
        most = self._max_message_bytes
        found, self._left = scan(data, start, self._channel, max_frame_size, inside, left, most)
        if found.error is not None and data[found.next] == HEADER and self._frame_size(data, found.next) > most:
            self.error = self._too_large()  # which says more
        return found

    def _frame_size(self, data: bytes, at: int) -> int:
        return OVERHEAD + int.from_bytes(data[at + 3 : at + FRAME_HEADER])

    def _continues(self, data: bytes, at: int) -> bool:
        size = self._frame_size(data, at) - OVERHEAD
        return data[at] == BODY and data[at + 1 : at + 3] == self._route and 0 < size <= self._left

    def _pass_by(self, data: bytes, at: int) -> bool:
        self._left -= self._frame_size(data, at) - OVERHEAD
        return self._left == 0

    def _ends_block(self, data: bytes, at: int) -> bool:
        return not self.amid

    def _lacking(self) -> int:
        return max(0, self._left) + (self._missing if self._passing else 0)

    def _check_aside(self) -> None:
        super()._check_aside()
        if self.error is None and self._aside.nbytes + self._lacking() > self._max_message_bytes:
            self.error = self._too_large()  # before all of it has come


def delivery_tag(frames: bytes, at: int) -> int:
    """The delivery tag of the basic.deliver whose frame is at offset ``at``."""
    tag: int = _tag(frames, at + _TAG_SIZE + 1 + frames[at + _TAG_SIZE])[0]
    return tag
