"""What the operators of a selector do, with the three-valued logic of SQL: None is NULL, or unknown.

As JMS has it, and Broker-J: values of different types are neither equal nor unequal (both are false); only numbers
have an order. What JMS leaves open: arithmetic with what is no number, or division by zero, is NULL.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

Value: TypeAlias = bool | int | float | str | None
Truth: TypeAlias = bool | None
Lookup: TypeAlias = Callable[[str], Value]
"""The value of an identifier; None if it has none."""

_INT64: Final = 1 << 63


def is_number(value: object) -> bool:
    """Whether a value is a number; a boolean is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kind(value: Value) -> type:
    return float if is_number(value) else type(value)


def equal(left: Value, right: Value) -> Truth:
    """``=``."""
    if left is None or right is None:
        return None
    return _kind(left) is _kind(right) and left == right


def unequal(left: Value, right: Value) -> Truth:
    """``<>``."""
    if left is None or right is None:
        return None
    return _kind(left) is _kind(right) and left != right


def _ordering(holds: Callable[[float, float], bool]) -> Callable[[Value, Value], Truth]:
    def compare(left: Value, right: Value) -> Truth:
        if left is None or right is None:
            return None
        if isinstance(left, bool | str) or isinstance(right, bool | str):
            return False
        return holds(left, right)

    return compare


def both(left: Truth, right: Truth) -> Truth:
    """``AND``."""
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def negated(truth: Truth) -> Truth:
    """``NOT``."""
    return None if truth is None else not truth


def _arithmetic(apply: Callable[[float, float], float]) -> Callable[[Value, Value], Value]:
    def calculate(left: Value, right: Value) -> Value:
        if left is None or right is None or isinstance(left, bool | str) or isinstance(right, bool | str):
            return None
        try:
            result = apply(left, right)
        except ZeroDivisionError:
            return None
        # Numbers of more bits would take ever more time; the product of two integers is no reason for inf.
        return float(result) if isinstance(result, int) and not -_INT64 <= result < _INT64 else result

    return calculate


def minus(value: Value) -> Value:
    """A ``-`` before a value."""
    return ARITHMETIC["-"](0, value)


COMPARISONS: Final[dict[str, Callable[[Value, Value], Truth]]] = {
    "=": equal,
    "<>": unequal,
    "<": _ordering(operator.lt),
    "<=": _ordering(operator.le),
    ">": _ordering(operator.gt),
    ">=": _ordering(operator.ge),
}
ARITHMETIC: Final[dict[str, Callable[[Value, Value], Value]]] = {
    "+": _arithmetic(operator.add),
    "-": _arithmetic(operator.sub),
    "*": _arithmetic(operator.mul),
    "/": _arithmetic(operator.truediv),  # also of integers, as Broker-J has it
}


def between(value: Value, low: Value, high: Value) -> Truth:
    """``value BETWEEN low AND high``."""
    return both(COMPARISONS[">="](value, low), COMPARISONS["<="](value, high))


def among(value: Callable[[Lookup], Value], choices: Iterable[Value]) -> Callable[[Lookup], Truth]:
    """``value IN (choices)``; no choice is NULL. However many there are, they take no more time."""
    found = frozenset((_kind(choice), choice) for choice in choices)

    def is_among(lookup: Lookup) -> Truth:
        given = value(lookup)
        return None if given is None else (_kind(given), given) in found

    return is_among


class Like:
    """The pattern of LIKE: ``%`` is any text, ``_`` any character.

    A regular expression with several ``.*`` may take a time without end; this one takes the first place where each
    part between two ``%`` fits.

    Args:
        escape: the character before a ``%`` or ``_`` that means itself; empty: there is none.

    Attributes:
        wild: characters of the parts between two ``%`` that have a ``_``, which are slow to find: each of their
            characters may be compared with each of a text.
    """

    def __init__(self, pattern: str, escape: str = "") -> None:
        parts: list[list[str | None]] = [[]]  # None: any character
        characters = iter(pattern)
        for character in characters:
            if character == escape:
                parts[-1] += next(characters, "")
            elif character == "%":
                parts.append([])
            else:
                parts[-1].append(None if character == "_" else character)
        first, *others = parts
        last = others.pop() if others else None
        self._first = _expression(first)
        self._last = None if last is None else _expression(last)
        self._last_length = len(parts[-1])
        self._middle = [_expression(part) if None in part else "".join(filter(None, part)) for part in others]
        self.wild = sum(len(part) for part in others if None in part)

    def matches(self, text: str) -> bool:
        """Whether a text is like the pattern."""
        if self._last is None:
            return self._first.fullmatch(text) is not None
        found = self._first.match(text)
        if found is None:
            return False
        end = found.end()
        for part in self._middle:
            end = _end(part, text, end)
            if end < 0:
                return False
        begin = len(text) - self._last_length
        return begin >= end and self._last.fullmatch(text, begin) is not None


def _expression(part: Iterable[str | None]) -> re.Pattern[str]:
    return re.compile("".join("." if each is None else re.escape(each) for each in part), re.DOTALL)


def _end(part: str | re.Pattern[str], text: str, begin: int) -> int:
    """Where the first place of a part ends that is not before ``begin``; -1: there is none."""
    if isinstance(part, str):  # no expression: a pattern may have thousands of parts, and to compile one takes long
        at = text.find(part, begin)
        return at if at < 0 else at + len(part)
    found = part.search(text, begin)
    return -1 if found is None else found.end()


def like(value: Value, pattern: Like) -> Truth:
    """``value LIKE pattern``; what is no text is not like any."""
    if value is None:
        return None
    return isinstance(value, str) and pattern.matches(value)


def truth(value: Value) -> Truth:
    """A value where a condition is expected; what is no boolean is false, as Broker-J has it."""
    return value is True if value is not None else None
