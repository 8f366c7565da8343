"""Conversion between the wire and Arrow: :mod:`decode` makes columns of frames, :mod:`encode` makes frames of rows.

Each protocol has its own package with both directions: :mod:`v0_10`, :mod:`v0_9`. What protocols share is in
:mod:`columns` for decoding, and in :mod:`rows` for encoding. The other packages import :mod:`decode` and :mod:`encode`
only.
"""
