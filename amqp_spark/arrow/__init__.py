"""Between the wire and Arrow: :mod:`decode` makes columns of frames, :mod:`encode` makes frames of rows.

Each protocol has a package of its own, with both directions side by side: :mod:`v0_10`. The other packages import
:mod:`decode` and :mod:`encode` only.
"""
