"""Emit _codec.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from facts import Model


def emit_codec(model: Model) -> str:
    """The text of _codec.py."""
    return ""
