"""The file of a spooled batch: its transfers exactly as received, where each one ends, and what proves it complete.

All numbers little-endian; every byte is covered by the checksum or compared::

    "AMQPSPOL" | version u32 | length of the header u32 | CRC-32 of the header u32
    header     JSON, UTF-8: consumerId, queue, epoch, sequence, begin, count, bytes
    frames     the transfers
    ends       count times u64: the offset in the frames where each transfer ends
    footer     length of the frames u64 | count u64 | CRC-32 of everything before u32 | "SPOLEND."

CRC-32 finds damage, not malice: who may write to the spool may read the messages anyway. It finds every error of up to
32 bits in a row, and costs a tenth of what writing costs.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Bytes: TypeAlias = bytes | bytearray | memoryview

VERSION: Final = 1

_MAGIC: Final = b"AMQPSPOL"
_CLOSING: Final = b"SPOLEND."
_HEAD: Final = struct.Struct("<8sIII")
_LENGTHS: Final = struct.Struct("<QQ")
_CLOSE: Final = struct.Struct("<I8s")
HEAD_BYTES: Final = _HEAD.size
FOOT_BYTES: Final = _LENGTHS.size + _CLOSE.size
END_BYTES: Final = 8
"""Of one entry of the ends."""
_MAX_HEADER_BYTES: Final = 1 << 16
_PIECE_BYTES: Final = 1 << 20


class Unreadable(Exception):
    """A file that cannot be used; the text says why."""


class OtherVersion(Unreadable):
    """A file that another version of this program can use."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of its batch: transfers ``[begin, begin + count)`` of an epoch, of ``nbytes`` in all."""

    consumer_id: str
    queue: str
    epoch: int
    sequence: int
    begin: int
    count: int
    nbytes: int

    def dump(self) -> bytes:
        """The beginning of the file, up to where the frames begin."""
        values = {name: getattr(self, field) for name, (field, _kind) in _FIELDS.items()}
        text = json.dumps(values, separators=(",", ":")).encode()
        return _HEAD.pack(_MAGIC, VERSION, len(text), zlib.crc32(text)) + text

    @property
    def file_bytes(self) -> int:
        """Bytes of the whole file."""
        return len(self.dump()) + self.nbytes + self.count * END_BYTES + FOOT_BYTES


_FIELDS: Final = {
    "consumerId": ("consumer_id", str),
    "queue": ("queue", str),
    "epoch": ("epoch", int),
    "sequence": ("sequence", int),
    "begin": ("begin", int),
    "count": ("count", int),
    "bytes": ("nbytes", int),
}


class Checksum:
    """The checksum of what passes through; its text goes into the record on the broker."""

    __slots__ = ("_value",)

    def __init__(self) -> None:
        self._value = 0

    def add(self, data: Bytes) -> None:
        """Count some bytes in."""
        self._value = zlib.crc32(data, self._value)

    @property
    def value(self) -> int:
        """As the footer has it."""
        return self._value

    @property
    def text(self) -> str:
        """As :class:`amqp_spark.state.records.OwnedBatch` has it."""
        return checksum_text(self._value)


def header_length(head: Bytes) -> int:
    """Bytes of the header, of the first ``HEAD_BYTES`` of a file."""
    data = bytes(head)
    if not data:
        raise Unreadable("is empty")
    if len(data) < HEAD_BYTES:
        raise Unreadable(f"ends after {len(data)} bytes")
    magic, version, length, _checksum = _HEAD.unpack(data)
    if magic != _MAGIC:
        raise Unreadable("does not begin as a file of the spool does: something else was put there")
    if version != VERSION:
        raise OtherVersion(
            f"has version {version}; this amqp_spark knows version {VERSION}: use the one that wrote it, or a newer one"
        )
    if length > _MAX_HEADER_BYTES:
        raise Unreadable("is damaged in its header")
    return int(length)


def load_header(head: Bytes, text: Bytes) -> Header:
    """The header, of the first ``HEAD_BYTES`` of a file and of what follows them."""
    length, data = header_length(head), bytes(text)
    if len(data) != length:
        raise Unreadable("ends inside its header")
    _magic, _version, _length, checksum = _HEAD.unpack(bytes(head))
    if zlib.crc32(data) != checksum:
        raise Unreadable("is damaged in its header")
    try:
        values: Any = json.loads(data)
    except ValueError:
        values = None
    if not isinstance(values, dict) or set(values) != set(_FIELDS):
        raise Unreadable("has a header with other fields")
    for name, (_field, kind) in _FIELDS.items():
        if type(values[name]) is not kind or (kind is int and values[name] < 0):
            raise Unreadable(f"has no readable {name} in its header")
    return Header(**{field: values[name] for name, (field, _kind) in _FIELDS.items()})


def pieces(header: Header, parts: Sequence[memoryview], ends: Bytes, checksum: Checksum) -> Iterator[Bytes]:
    """The whole file, in pieces that are neither tiny nor huge; frames are copied only where parts are small.

    ``checksum`` is that of the file when all were taken. The last piece is the footer.
    """
    for piece in _regrouped((memoryview(header.dump()), *parts, memoryview(ends).cast("B"))):
        checksum.add(piece)
        yield piece
    lengths = _LENGTHS.pack(header.nbytes, header.count)
    checksum.add(lengths)
    yield lengths + _CLOSE.pack(checksum.value, _CLOSING)


def _regrouped(parts: Iterable[memoryview]) -> Iterator[Bytes]:
    waiting: list[memoryview] = []
    size = 0
    for part in parts:
        if size + len(part) > _PIECE_BYTES and waiting:
            yield waiting[0] if len(waiting) == 1 else b"".join(waiting)
            waiting, size = [], 0
        if len(part) >= _PIECE_BYTES:
            for at in range(0, len(part), _PIECE_BYTES):
                yield part[at : at + _PIECE_BYTES]
        elif len(part):
            waiting.append(part)
            size += len(part)
    if waiting:
        yield b"".join(waiting)


def check_footer(foot: Bytes, header: Header, size: int) -> str:
    """The checksum that the footer, the last ``FOOT_BYTES`` of ``size``, has; all lengths are compared."""
    expected = header.file_bytes
    if size < expected:
        raise Unreadable(f"ends after {size} of {expected} bytes")
    if size > expected:
        raise Unreadable(f"has {size} bytes instead of {expected}")
    data = bytes(foot)
    nbytes, count = _LENGTHS.unpack_from(data)
    checksum, closing = _CLOSE.unpack_from(data, _LENGTHS.size)
    if (nbytes, count) != (header.nbytes, header.count) or closing != _CLOSING:
        raise Unreadable("is damaged in its footer")
    return checksum_text(checksum)


def checksum_text(value: int) -> str:
    """How a checksum is written where a person may read it."""
    return f"crc32:{value:08x}"


def covered(size: int) -> int:
    """How many bytes of a file of ``size`` its checksum covers."""
    return size - _CLOSE.size
