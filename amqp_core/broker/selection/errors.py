"""A text that is no selector."""

from __future__ import annotations


class SelectorError(Exception):
    """A text that is no selector.

    Args:
        text: what is wrong.
        at: index of the character in the selector where it is wrong.
    """

    def __init__(self, text: str, at: int) -> None:
        super().__init__(text, at)
        self.text = text
        self.at = at

    def __str__(self) -> str:
        return f"character {self.at + 1}: {self.text}"
