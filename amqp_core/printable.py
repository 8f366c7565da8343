"""Texts of others, such as a broker or a certificate, as a terminal may show them."""

from __future__ import annotations


def printable(text: str) -> str:
    """Escape a text so that it cannot control a terminal: control characters, line ends among them, as in Python."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def printable_lines(text: str) -> str:
    """Escape each line of a text; its line ends stay."""
    return "\n".join(map(printable, text.split("\n")))
