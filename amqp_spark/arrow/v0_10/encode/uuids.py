"""Texts of UUIDs as their 16 bytes, a column at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from amqp_spark.arrow.v0_10.encode.pieces import bounds, present

if TYPE_CHECKING:
    from amqp_spark.arrow.v0_10.encode.pieces import Array, Mask, Numbers

_TEXT: Final = 36
_GROUPS: Final = ((0, 8), (9, 13), (14, 18), (19, 23), (24, 36))
_DASHES: Final = (8, 13, 18, 23)
_WRONG: Final = 0x100  # in the table: not two hexadecimal digits


def _table() -> Numbers:
    """The byte of two hexadecimal digits, indexed by both characters as a 16-bit number in native byte order."""
    table = np.full(0x10000, _WRONG, np.uint16)
    digits = b"0123456789abcdefABCDEF"
    for first in digits:
        for second in digits:
            pair = bytes((first, second))
            table[int(np.frombuffer(pair, np.uint16)[0])] = int(pair, 16)
    return table


_OCTETS: Final = _table()


def parse(column: Array) -> tuple[Numbers, Mask]:
    """Parse UUIDs in the usual text form, either case: ``f81d4fae-7dec-11d0-a765-00a0c91e6bf6``.

    Args:
        column: the texts, a binary array (:func:`.pieces.binary`).

    Returns:
        The bytes of every text, as numbers of dtype ``V16``, and a mask of the rows that are no UUID (never null rows),
        whose bytes are undefined.
    """
    rows = len(column)
    ends = bounds(column)
    there = present(column)
    fits = np.diff(ends) == _TEXT
    if there is not None:
        fits &= there
    wrong = ~fits if there is None else there & ~fits
    octets = np.zeros((rows, 16), np.uint8)
    good = np.flatnonzero(fits)
    if len(good):
        data = np.frombuffer(cast("Any", column.buffers()[2]), np.uint8)
        if len(good) == rows:
            texts = data[ends[0] : ends[-1]].reshape(rows, _TEXT)
        else:
            texts = data[ends[good][:, None] + np.arange(_TEXT)]
        parsed, bad = _parse(texts)
        octets[good] = parsed
        wrong[good] |= bad
    return octets.reshape(-1).view("V16"), wrong


def _parse(texts: Numbers) -> tuple[Numbers, Mask]:
    digits = np.empty((len(texts), 32), np.uint8)
    at = 0
    for begin, end in _GROUPS:
        digits[:, at : at + end - begin] = texts[:, begin:end]
        at += end - begin
    found = _OCTETS[digits.view(np.uint16)]
    wrong = (found == _WRONG).any(axis=1)
    for dash in _DASHES:
        wrong |= texts[:, dash] != ord("-")
    return found.astype(np.uint8), wrong
