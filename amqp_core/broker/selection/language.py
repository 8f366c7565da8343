"""Selectors of JMS 1.1 section 3.8: what can be asked of a message, and how that is read.

::

    condition  = conjunct {OR conjunct}
    conjunct   = negation {AND negation}
    negation   = {NOT} predicate
    predicate  = sum [comparison sum | [NOT] BETWEEN sum AND sum | [NOT] IN (literal {, literal})
                      | [NOT] LIKE string [ESCAPE string] | IS [NOT] NULL]
    sum        = product {(+ | -) product}
    product    = sign {(* | /) sign}
    sign       = {+ | -} operand
    operand    = literal | identifier | (condition)

It is compiled to functions. Chains of operators are loops, so only parentheses make the functions, and their reader,
call each other deeper; there is a limit for them. There are others for LIKE, which alone takes a time in proportion to
the text that it looks at, and not only to its own length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from amqp_core.broker.selection.errors import SelectorError
from amqp_core.broker.selection.operations import (
    ARITHMETIC,
    COMPARISONS,
    Like,
    Lookup,
    Truth,
    Value,
    among,
    between,
    like,
    minus,
    negated,
    truth,
)
from amqp_core.broker.selection.tokens import Token, tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_DEPTH: Final = 32
"""Most parentheses inside each other."""
MOST_LIKES: Final = 64
"""Most LIKEs. Each may read a text to its end: 64 KiB take up to 1.2 ms (measured)."""
MOST_WILD: Final = 256
"""Most characters of the patterns, all LIKEs together, that stand between two ``%`` along with a ``_``.

Each of them may be compared with each character of a text: 256 and 64 KiB take 30 ms (measured).
"""
_LIKE_STEPS: Final = 4

_Evaluate: TypeAlias = Callable[[Lookup], Value]

# What an expression is, as far as it is known without a message.
_ANY: Final = "an identifier"
_CONDITION: Final = "a condition"
_NUMBER: Final = "a number"
_TEXT: Final = "a text"
_EXPECTED: Final = {"end": "the end or an operator", "number": "a number", "string": "a string"}
_ORDER: Final = frozenset(("<", "<=", ">", ">="))


class Condition:
    """The condition that a selector is: call it with a lookup. It holds where it is true, neither false nor unknown.

    Args:
        steps: about how much there is to do when it is called: values that it looks at, the choices of an IN not among
            them.
    """

    __slots__ = ("_evaluate", "steps")

    def __init__(self, evaluate: Callable[[Lookup], Truth], steps: int) -> None:
        self._evaluate = evaluate
        self.steps = steps

    def __call__(self, lookup: Lookup) -> bool:
        """Whether it holds."""
        return self._evaluate(lookup) is True


class _Part(NamedTuple):
    """An expression that was read."""

    kind: str
    evaluate: _Evaluate
    at: int


def compiled(text: str) -> Condition:
    """The condition that a selector is.

    Raises:
        SelectorError: it is no selector, or too long or deep, or its LIKEs are too many or take too long.
    """
    reader = _Reader(text)
    evaluate = reader.condition(reader.read_condition())
    reader.expect("end")
    return Condition(evaluate, reader.steps)


class _Reader:
    """Reads a selector from left to right."""

    def __init__(self, text: str) -> None:
        self._tokens = list(tokens(text))
        self._place = 0
        self._depth = 0
        self._likes = 0
        self._wild = 0
        self.steps = 0
        """See ``Condition``."""

    # --- words

    @property
    def _next(self) -> Token:
        return self._tokens[self._place]

    def _take(self) -> Token:
        token = self._next
        if token.kind != "end":
            self._place += 1
        return token

    def _takes(self, *kinds: str) -> Token | None:
        """The next word, if it is one of these."""
        return self._take() if self._next.kind in kinds else None

    def expect(self, kind: str) -> Token:
        """The next word, which has to be of this kind."""
        if self._next.kind != kind:
            raise self._unexpected(_EXPECTED.get(kind, f"'{kind}'"))
        return self._take()

    def _unexpected(self, expected: str) -> SelectorError:
        found = f"'{self._next.text[:20]}'" if self._next.text else "the end"
        return SelectorError(f"{expected} is expected, not {found}", self._next.at)

    # --- expressions

    def read_condition(self) -> _Part:
        """A condition, or anything else that may be in parentheses."""
        return self._chain("OR", self._read_conjunct, until=True)

    def _read_conjunct(self) -> _Part:
        return self._chain("AND", self._read_negation, until=False)

    def _chain(self, word: str, read: Callable[[], _Part], *, until: bool) -> _Part:
        """Conditions joined by AND or OR, up to the first that is ``until``."""
        first = read()
        if self._next.kind != word:
            return first
        conditions = [self.condition(first)]
        while self._takes(word):
            conditions.append(self.condition(read()))

        def evaluate(lookup: Lookup) -> Truth:
            result: Truth = not until
            for each in conditions:
                found = each(lookup)
                if found is until:
                    return until
                if found is None:
                    result = None
            return result

        return _Part(_CONDITION, evaluate, first.at)

    def _read_negation(self) -> _Part:
        at, count = self._next.at, 0
        while self._takes("NOT"):
            count += 1
        part = self._read_predicate()
        if not count:
            return part
        condition = self.condition(part)
        return _Part(_CONDITION, _not(condition) if count % 2 else condition, at)

    def _read_predicate(self) -> _Part:
        left = self._read_sum()
        comparison = self._takes(*COMPARISONS)
        if comparison is not None:
            return self._compared(left, comparison.kind, self._read_sum())
        if self._takes("IS"):
            wanted = self._takes("NOT") is None
            self.expect("NULL")
            return _Part(_CONDITION, lambda lookup: (left.evaluate(lookup) is None) is wanted, left.at)
        negative = self._takes("NOT") is not None
        if self._takes("BETWEEN"):
            found = self._between(left)
        elif self._takes("IN"):
            found = self._in(left)
        elif self._takes("LIKE"):
            found = self._like(left)
        elif negative:
            raise self._unexpected("BETWEEN, IN or LIKE")
        else:
            return left
        return _Part(_CONDITION, _not(found) if negative else found, left.at)

    def _compared(self, left: _Part, sign: str, right: _Part) -> _Part:
        if sign in _ORDER:
            _require(left, _NUMBER, f"'{sign}' needs")
            _require(right, _NUMBER, f"'{sign}' needs")
        compare, first, second = COMPARISONS[sign], left.evaluate, right.evaluate
        return _Part(_CONDITION, lambda lookup: compare(first(lookup), second(lookup)), left.at)

    def _between(self, value: _Part) -> _Evaluate:
        low = self._read_sum()
        self.expect("AND")
        high = self._read_sum()
        for each in (value, low, high):
            _require(each, _NUMBER, "BETWEEN needs")
        return lambda lookup: between(value.evaluate(lookup), low.evaluate(lookup), high.evaluate(lookup))

    def _in(self, value: _Part) -> _Evaluate:
        self.expect("(")
        choices: list[Value] = [self._literal()]
        while self._takes(","):
            choices.append(self._literal())
        self.expect(")")
        return among(value.evaluate, choices)

    def _literal(self) -> Value:
        negative = self._next.kind == "-"
        token = self._take() if not negative else (self._take(), self.expect("number"))[1]
        if token.kind in ("TRUE", "FALSE"):
            return token.kind == "TRUE"
        if token.kind not in ("number", "string"):
            self._place -= token.kind != "end"
            raise self._unexpected("a string, number or boolean")
        return minus(token.value) if negative else token.value

    def _like(self, value: _Part) -> _Evaluate:
        _require(value, _TEXT, "LIKE needs")
        pattern, escape = self.expect("string"), ""
        if self._takes("ESCAPE"):
            token = self.expect("string")
            escape = str(token.value)
            if len(escape) != 1:
                raise SelectorError("one character is expected behind ESCAPE", token.at)
        prepared = Like(str(pattern.value), escape)
        self._likes += 1
        self._wild += prepared.wild
        self.steps += _LIKE_STEPS
        if self._likes > MOST_LIKES:
            raise SelectorError(f"there are more than {MOST_LIKES} LIKE", pattern.at)
        if self._wild > MOST_WILD:
            text = f"more than {MOST_WILD} characters of LIKE patterns stand between two '%' along with a '_'"
            raise SelectorError(text, pattern.at)
        return lambda lookup: like(value.evaluate(lookup), prepared)

    def _read_sum(self) -> _Part:
        return self._calculation(("+", "-"), self._read_product)

    def _read_product(self) -> _Part:
        return self._calculation(("*", "/"), self._read_sign)

    def _calculation(self, signs: Sequence[str], read: Callable[[], _Part]) -> _Part:
        first = read()
        if self._next.kind not in signs:
            return first
        _require(first, _NUMBER, f"'{self._next.kind}' needs")
        steps = []
        while (sign := self._takes(*signs)) is not None:
            part = read()
            _require(part, _NUMBER, f"'{sign.kind}' needs")
            steps.append((ARITHMETIC[sign.kind], part.evaluate))

        def evaluate(lookup: Lookup) -> Value:
            result = first.evaluate(lookup)
            for apply, operand in steps:
                result = apply(result, operand(lookup))
            return result

        return _Part(_NUMBER, evaluate, first.at)

    def _read_sign(self) -> _Part:
        at, signs = self._next.at, []
        while (sign := self._takes("+", "-")) is not None:
            signs.append(sign.kind)
        operand = self._read_operand()
        if not signs:
            return operand
        _require(operand, _NUMBER, f"'{signs[-1]}' needs")
        evaluate = operand.evaluate
        if signs.count("-") % 2:
            return _Part(_NUMBER, lambda lookup: minus(evaluate(lookup)), at)
        return _Part(_NUMBER, lambda lookup: minus(minus(evaluate(lookup))), at)

    def _read_operand(self) -> _Part:
        token = self._next
        self.steps += 1
        if self._takes("("):
            self._depth += 1
            if self._depth > MOST_DEPTH:
                raise SelectorError(f"more than {MOST_DEPTH} parentheses are inside each other", token.at)
            part = self.read_condition()
            self.expect(")")
            self._depth -= 1
            return part
        if self._takes("identifier"):
            name = token.text if token.text[0] != '"' else str(token.value)
            return _Part(_ANY, lambda lookup: lookup(name), token.at)
        kinds = {"number": _NUMBER, "string": _TEXT, "TRUE": _CONDITION, "FALSE": _CONDITION}
        if token.kind not in kinds:
            raise self._unexpected("a value")
        self._take()
        value: Value = token.value if kinds[token.kind] != _CONDITION else token.kind == "TRUE"
        return _Part(kinds[token.kind], lambda _: value, token.at)

    def condition(self, part: _Part) -> Callable[[Lookup], Truth]:
        """An expression where a condition is needed."""
        _require(part, _CONDITION, "a selector, AND, OR and NOT need")
        return lambda lookup: truth(part.evaluate(lookup))


def _not(condition: Callable[[Lookup], Value]) -> _Evaluate:
    return lambda lookup: negated(truth(condition(lookup)))


def _require(part: _Part, kind: str, who: str) -> None:
    if part.kind not in (kind, _ANY):
        raise SelectorError(f"{who} {kind}, not {part.kind}", part.at)
