"""Checks the sizes and counts of maps, lists and arrays inside encoded headers, at every depth.

Values are not decoded: invalid UTF-8 and unknown types are left to the reader of the value.
"""

from __future__ import annotations

from typing import Final

from amqp_core.v0_10 import type_codes as code
from amqp_core.v0_10.type_codes import WIDTHS

CONTAINERS: Final = (code.MAP, code.LIST, code.ARRAY)


def end_of(data: bytes, number: int, at: int) -> int:
    """End position of a value of type ``number`` whose bytes begin at ``at``; -1 if there is no such type."""
    width = WIDTHS[number]
    if width >= 0:
        return at + width
    return -1 if width == -9 else at - width + int.from_bytes(data[at : at - width], "big")


def is_whole(data: bytes, code_at: int, after: int) -> bool:
    """Whether a value from its type code up to ``after`` is well-formed inside; always true if it is no container.

    A container may have size 0 and no count, as Broker-J writes null containers.
    """
    left = [(data[code_at], code_at + 1, after)]
    while left:
        number, at, until = left.pop()
        at += 4
        if number not in CONTAINERS or at == until:
            continue
        inside = _items(data, number, at, until)
        if inside is None:
            return False
        left += inside
    return True


def _items(data: bytes, number: int, at: int, until: int) -> list[tuple[int, int, int]] | None:
    """The containers among the items of a container: type, begin, end. ``None`` if the items do not fill it exactly."""
    item = -1
    if number == code.ARRAY and at < until:
        item, at = data[at], at + 1
    count, at = int.from_bytes(data[at : at + 4], "big"), at + 4
    if at > until:
        return None
    if item >= 0 and WIDTHS[item] == 0:  # items without bytes
        return [] if at == until else None
    found = []
    for _ in range(count):
        if number == code.MAP and at < until:
            at += 1 + data[at]
        if at >= until:
            return None
        if number != code.ARRAY:
            item, at = data[at], at + 1
        end = end_of(data, item, at)
        if not 0 <= end <= until:
            return None
        if item in CONTAINERS:
            found.append((item, at, end))
        at = end
    return found if at == until else None


__all__ = ["CONTAINERS", "end_of", "is_whole"]
