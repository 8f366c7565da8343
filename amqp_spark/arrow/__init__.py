"""Conversion between the wire and Arrow: :mod:`decode` makes columns of frames, :mod:`encode` makes frames of rows.

Each protocol has its own package with both directions: :mod:`v0_10`. What protocols share in making frames is in
:mod:`rows`. The other packages import :mod:`decode` and :mod:`encode` only.
"""
