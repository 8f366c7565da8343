"""The language of selectors: what it means, what is refused, and what a hostile one costs."""

from __future__ import annotations

import operator
import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_core.broker.selection.errors import SelectorError
from amqp_core.broker.selection.language import MOST_DEPTH, MOST_LIKES, MOST_WILD, compiled
from amqp_core.broker.selection.tokens import MOST_CHARACTERS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from amqp_core.broker.selection.operations import Value

VALUES: Mapping[str, Value] = {"one": 1, "half": 0.5, "text": "it's", "yes": True, "no": False, "$_a.b": 7}


def holds(selector: str, values: Mapping[str, Value] = VALUES) -> bool:
    return compiled(selector)(values.get)


@pytest.mark.parametrize(
    "selector",
    [
        *("one = 1", "one=1.0", "half = .5", "half = 5E-1", "one < 2 AND 2 > one", "one <> 2", "one >= 1 and one <= 1"),
        *("0x10 = 16", "010 = 8", "5L = 5", "5. = 5", "99999999999999999999 > 1", "9223372036854775807 + 1 > one"),
        *("one + 2 * 3 = 7", "(one + 2) * 3 = 9", "10 - 4 - 3 = 3", "12 / 2 / 3 = 2", "7 / 2 = 3.5", "- - one = 1"),
        *("-one = -1", "+one = 1", "one = --1", "2 - -1 = 3"),
        *("text = 'it''s'", "\"text\" = 'it''s'", "$_a.b = 7", "'a' = 'a'", "text <> 'its'"),
        *("yes", "NOT no", "not not yes", "yes = TRUE", "no = false", "yes <> no", "(one = 1) = TRUE", "TRUE"),
        *("one BETWEEN 0 AND 1 AND yes", "one NOT BETWEEN 2 AND 3", "one BETWEEN 2 AND 3 OR yes"),
        *("text IN ('x', 'it''s')", "text NOT IN ('x')", "one IN (-1, 1)", "yes IN (TRUE)"),
        *("text LIKE 'it%'", "text LIKE '%s'", "text LIKE 'i_''s'", "text LIKE '%'", "text NOT LIKE 'i'"),
        *("none IS NULL", "one IS NOT NULL", "none + 1 IS NULL", "one / 0 IS NULL", "text + 1 IS NULL"),
        *("NOT one = 2", "yes OR none = 1", "none = 1 OR yes", "NOT (none = 1 AND no)", "NOT no AND yes"),
        *(" one\t=\n1 ", "one = 1 OR no AND no"),
    ],
)
def test_it_holds(selector: str) -> None:
    assert holds(selector)


@pytest.mark.parametrize(
    "selector",
    [
        *("one = 2", "one = '1'", "one <> '1'", "text = 1", "yes = 1", "yes <> 1", "text > 1", "yes < 2", "1 = TRUE"),
        *("none = 1", "none <> 1", "NOT none = 1", "none = none", "none > 1", "none LIKE '%'", "none NOT LIKE '%'"),
        *("none IN ('a')", "none NOT IN ('a')", "none BETWEEN 0 AND 1", "none NOT BETWEEN 0 AND 1"),
        *("one BETWEEN none AND 5", "one NOT BETWEEN none AND 1", "none", "NOT none", "none OR no", "none AND yes"),
        *("one LIKE '1'", "text", "ONE = 1", "FALSE", "one / 0 = 1", "text IN (1)", "yes IN (1)", "one IN (TRUE)"),
    ],
)
def test_it_does_not_hold(selector: str) -> None:
    assert not holds(selector)


@pytest.mark.parametrize(
    ("selector", "at", "words"),
    [
        ("one ==1", 6, "a value is expected, not '='"),
        ("one = ", 7, "a value is expected, not the end"),
        ("one = 1 2", 9, "the end or an operator is expected, not '2'"),
        ("one = 1 = 1", 9, "the end or an operator"),
        ("(one = 1", 9, "')' is expected, not the end"),
        ("one = 1)", 8, "not ')'"),
        ("one = 'x", 7, "a quote is not closed"),
        ("one ; 2", 5, "';' is no word"),
        ("one AND 'a'", 9, "AND, OR and NOT need a condition, not a text"),
        ("one + 1", 1, "a condition, not a number"),
        ("one NOT 5", 9, "BETWEEN, IN or LIKE"),
        ("text > 'a'", 8, "'>' needs a number, not a text"),
        ("one BETWEEN 'a' AND 'b'", 13, "BETWEEN needs a number, not a text"),
        ("one BETWEEN 1", 14, "'AND' is expected"),
        ("one IN ()", 9, "a string, number or boolean is expected, not ')'"),
        ("one IN (two)", 9, "not 'two'"),
        ("one LIKE two", 10, "a string is expected, not 'two'"),
        ("1 LIKE 'a'", 1, "LIKE needs a text, not a number"),
        ("text LIKE 'a' ESCAPE 'ab'", 22, "one character"),
        ("one IS 5", 8, "'NULL' is expected, not '5'"),
        ("one = NULL", 7, "a value is expected, not 'NULL'"),
        ("-yes = NOT no", 8, "not 'NOT'"),
        ("-'a' = 1", 2, "'-' needs a number, not a text"),
        ("one + (1 = 1) = 2", 8, "'+' needs a number, not a condition"),
        ("09 = one", 1, "09 is no number"),
        ("x" * (MOST_CHARACTERS + 1), MOST_CHARACTERS + 1, "more than 16384 characters"),
        ("(" * 5000, MOST_DEPTH + 1, "more than 32 parentheses"),
        (" OR ".join(["one LIKE 'a'"] * (MOST_LIKES + 1)), 16 * MOST_LIKES + 10, "more than 64 LIKE"),
        ("one LIKE '%" + "_" * MOST_WILD + "a%'", 10, "more than 256 characters"),
        (" OR ".join(["one LIKE '%a____b%'"] * 43), 23 * 42 + 10, "more than 256 characters"),
    ],
)
def test_an_error_says_what_and_where(selector: str, at: int, words: str) -> None:
    with pytest.raises(SelectorError, match=rf"^character {at}: .*{re.escape(words)}"):
        compiled(selector)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("(" * MOST_DEPTH + "one = 1" + ")" * MOST_DEPTH, True),
        ("NOT (" * MOST_DEPTH + "one = 1 + (1 - 1" + ")" * MOST_DEPTH, None),
        ("OR one = 1 " * 1400, None),
        (" OR ".join(["one = 2"] * 1400), False),
        (" AND ".join(["one = 1"] * 1300), True),
        ("NOT " * 4000 + "yes", True),
        ("-" * 16_000 + "one = 1", True),
        ("+".join(["one"] * 4000) + " = 4000", True),
        ("*".join(["9223372036854775807"] * 800) + " > 1", True),
        ("9" * 16_000 + " > 1", True),
        ("0x" + "f" * 16_000 + " > 1", True),
        (" OR ".join(["one LIKE 'a'"] * MOST_LIKES), False),
        ("long LIKE '%" + "_" * (MOST_WILD - 1) + "c%'", False),
        ("long LIKE '" + "_" * 8000 + "' OR long LIKE '" + "_" * 6999 + "b_%'", False),
        ("long LIKE '%" + "a" * 7000 + "b%'", True),
        ("long LIKE '" + "%a" * 8000 + "'", False),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_long_or_deep_neither_overflows_nor_hangs(selector: str, expected: bool | None) -> None:
    """The last one would take years as one regular expression."""
    values = {**VALUES, "long": "a" * 7000 + "b"}
    if expected is None:
        with pytest.raises(SelectorError):
            compiled(selector)
    else:
        assert holds(selector, values) is expected


def test_what_is_in_a_list_is_looked_up_and_not_compared_with_each() -> None:
    """A list of 8,000 takes no more steps than one, and none of its values is compared with one of another kind."""
    compared = 0

    class Number(int):
        __hash__ = int.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return int(self) == other

    condition = compiled("n IN (" + ",".join(str(each) for each in range(3_000)) + ")")
    assert condition({"n": Number(2_999)}.get)
    assert compared < 20
    assert condition.steps == compiled("n IN (1)").steps
    assert not condition({"n": Number(3_000)}.get)
    assert compiled("n IN (1, 'a', TRUE)")({"n": 1.0}.get)
    assert not compiled("n IN (1, 0)")({"n": True}.get)


def test_steps_are_the_values_that_are_looked_at() -> None:
    assert compiled("a = 1").steps == 2
    assert compiled("a + b + c > 2 AND NOT d").steps == 5
    assert compiled("a LIKE 'x'").steps > compiled("a IS NULL").steps


# --- by comparison with Python

NAMES = ("a", "b", "c")
NUMBERS = st.integers(-3, 3) | st.sampled_from([0.5, -1.5, 2.0])
RECORDS = st.fixed_dictionaries({name: st.none() | NUMBERS for name in NAMES})
Expression = tuple[str, "Callable[[Mapping[str, Any]], Any]"]


def lifted(apply: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is unknown where an argument is."""
    return lambda *values: None if None in values else apply(*values)


def number(value: float) -> Expression:
    return (f"({value})" if value < 0 else str(value)), lambda _: value


def joined(sign: str, apply: Callable[..., Any], left: Expression, right: Expression) -> Expression:
    return f"({left[0]} {sign} {right[0]})", lambda record: apply(left[1](record), right[1](record))


def conjunction(left: bool | None, right: bool | None) -> bool | None:
    if left is False or right is False:
        return False
    return None if None in (left, right) else True


def negation(value: bool | None) -> bool | None:
    return None if value is None else not value


def disjunction(left: bool | None, right: bool | None) -> bool | None:
    return negation(conjunction(negation(left), negation(right)))


SUMS = st.recursive(
    NUMBERS.map(number) | st.sampled_from(NAMES).map(lambda name: (name, lambda record: record[name])),
    lambda inner: st.one_of(
        *(
            st.builds(lambda left, right, s=sign, f=apply: joined(s, lifted(f), left, right), inner, inner)
            for sign, apply in (("+", operator.add), ("-", operator.sub), ("*", operator.mul))
        )
    ),
    max_leaves=4,
)
COMPARED = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
PREDICATES = st.one_of(
    *(
        st.builds(lambda left, right, s=sign, f=apply: joined(s, lifted(f), left, right), SUMS, SUMS)
        for sign, apply in COMPARED.items()
    ),
    st.builds(lambda each: (f"({each[0]} IS NULL)", lambda record: each[1](record) is None), SUMS),
    st.builds(
        lambda each, low, high: (
            f"({each[0]} BETWEEN {low[0]} AND {high[0]})",
            lambda record: conjunction(
                lifted(operator.ge)(each[1](record), low[1](record)),
                lifted(operator.le)(each[1](record), high[1](record)),
            ),
        ),
        SUMS,
        SUMS,
        SUMS,
    ),
)
CONDITIONS = st.recursive(
    PREDICATES,
    lambda inner: st.one_of(
        st.builds(lambda left, right: joined("AND", conjunction, left, right), inner, inner),
        st.builds(lambda left, right: joined("or", disjunction, left, right), inner, inner),
        st.builds(lambda each: (f"(NOT {each[0]})", lambda record: negation(each[1](record))), inner),
    ),
    max_leaves=6,
)


@given(CONDITIONS, RECORDS)
def test_expressions_mean_what_they_mean_in_python(condition: Expression, record: Mapping[str, Any]) -> None:
    text, expected = condition
    assert holds(text, record) is (expected(record) is True)
    assert holds(f"NOT {text}", record) is (expected(record) is False)


@given(
    st.lists(st.integers(-9, 9), min_size=1, max_size=6),
    st.lists(st.sampled_from("+-*"), min_size=5, max_size=5),
    st.integers(-50, 50),
)
def test_precedence_without_parentheses_is_that_of_python(numbers: list[int], signs: list[str], bound: int) -> None:
    text = str(numbers[0]) + "".join(f" {sign} {each}" for sign, each in zip(signs, numbers[1:], strict=False))
    assert holds(f"{text} > {bound}") is (eval(text) > bound)


@given(st.lists(st.sampled_from(["yes", "no", "NOT yes", "NOT no"]), min_size=1, max_size=6), st.data())
def test_precedence_of_logic_is_that_of_python(operands: list[str], data: st.DataObject) -> None:
    text = operands[0]
    for operand in operands[1:]:
        text += f" {data.draw(st.sampled_from(['AND', 'OR']))} {operand}"
    assert holds(text) is eval(text.lower(), {"yes": True, "no": False})


@given(st.text("ab%_!\n.", max_size=8), st.text("ab%_!\n.", max_size=12), st.sampled_from(["", "!", "b"]))
def test_like_is_like_a_regular_expression(pattern: str, text: str, escape: str) -> None:
    expected, rest = "", list(pattern)
    while rest:
        character = rest.pop(0)
        if character == escape:
            expected += re.escape(rest.pop(0)) if rest else ""
        else:
            expected += {"%": ".*", "_": "."}.get(character, re.escape(character))
    selector = f"text LIKE '{pattern}'" + (f" ESCAPE '{escape}'" if escape else "")
    assert holds(selector, {"text": text}) is (re.fullmatch(expected, text, re.DOTALL) is not None)


WORDS = [
    "one",
    "1",
    "'a'",
    "(",
    ")",
    "AND",
    "OR",
    "NOT",
    "IN",
    "LIKE",
    "IS",
    "NULL",
    "BETWEEN",
    "=",
    "<",
    "+",
    "-",
    ",",
]


@given(st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join) | st.text(max_size=20))
def test_any_text_is_a_selector_or_refused(text: str) -> None:
    try:
        result: object = holds(text)
    except SelectorError as error:
        result = error.at
    assert result in range(len(text) + 1)  # a boolean, or where it is wrong
