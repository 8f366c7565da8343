"""The words of a selector (JMS 1.1 section 3.8.1.1)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from amqp_core.broker.selection.errors import SelectorError

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_CHARACTERS: Final = 16_384
"""The longest selector."""
KEYWORDS: Final = frozenset(("AND", "BETWEEN", "ESCAPE", "FALSE", "IN", "IS", "LIKE", "NOT", "NULL", "OR", "TRUE"))
"""Reserved words, in any case."""
_PATTERN: Final = re.compile(
    r"""\s*(?:
      (?P<number> 0[xX][0-9a-fA-F]+[lL]? | (?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[lL]? )
    | (?P<string> '(?:[^']|'')*' )
    | (?P<quoted> "(?:[^"]|"")*" )
    | (?P<word> (?:[^\W\d]|\$)[\w$.]* )
    | (?P<sign> <>|<=|>=|[=<>+\-*/(),] )
    | (?P<end> \Z )
    )""",
    re.VERBOSE,
)
_MOST_INTEGER: Final = (1 << 63) - 1
_DECIMAL: Final = re.compile(r"0|[1-9][0-9]*")
_OCTAL: Final = re.compile(r"0[0-7]+")


class Token(NamedTuple):
    """A word.

    Args:
        kind: ``number``, ``string``, ``identifier``, ``end``; a keyword or sign is its own kind.
        value: of a number, string or identifier.
        text: as it stands in the selector.
        at: where it begins.
    """

    kind: str
    value: int | float | str
    text: str
    at: int


def tokens(text: str) -> Iterator[Token]:
    """The words of a selector; the last one is of kind ``end``.

    Raises:
        SelectorError: it is too long, or has what is no word.
    """
    if len(text) > MOST_CHARACTERS:
        raise SelectorError(f"a selector has more than {MOST_CHARACTERS} characters", MOST_CHARACTERS)
    place = 0
    while True:
        found = _PATTERN.match(text, place)
        if found is None:
            at = place + len(text[place:]) - len(text[place:].lstrip())
            quote = text[at] in "'\""
            raise SelectorError("a quote is not closed" if quote else f"{text[at]!r} is no word of a selector", at)
        kind = found.lastgroup or ""
        token = _token(kind, found[kind], found.start(kind))
        place = found.end()
        yield token
        if kind == "end":
            return


def _token(kind: str, word: str, at: int) -> Token:
    if kind == "number":
        return Token("number", _number(word, at), word, at)
    if kind == "string":
        return Token("string", word[1:-1].replace("''", "'"), word, at)
    if kind == "quoted":
        return Token("identifier", word[1:-1].replace('""', '"'), word, at)
    if kind == "word":
        keyword = word.upper()
        return Token(keyword, word, word, at) if keyword in KEYWORDS else Token("identifier", word, word, at)
    return Token(word or "end", word, word, at)


def _number(word: str, at: int) -> int | float:
    """A number as Java writes it; an integer that has more than 64 bits is approximate."""
    digits = word.rstrip("lL")
    if digits[:2] in ("0x", "0X"):
        number = int(digits, 16)
    elif _OCTAL.fullmatch(digits):
        number = int(digits, 8)
    elif not _DECIMAL.fullmatch(digits):
        if digits != word or digits.isdigit():
            raise SelectorError(f"{word} is no number", at)
        return float(digits)
    elif len(digits) > len(str(_MOST_INTEGER)):  # int() does not take thousands of digits
        return float(digits)
    else:
        number = int(digits)
    return number if number <= _MOST_INTEGER else _approximate(number)


def _approximate(number: int) -> float:
    try:
        return float(number)
    except OverflowError:
        return float("inf")
