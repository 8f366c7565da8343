"""Conditions of errors: their grammar, and that every use in the code gives the fields of its sentences."""

from __future__ import annotations

import ast
import importlib
import string
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from amqp_core.broker.error_conditions import BrokerCondition
from amqp_core.error_conditions import Condition, CoreCondition, condition_of, reason
from amqp_core.errors import (
    AmqpError,
    CommandFailed,
    DecodeError,
    EncodeError,
    MessageRejected,
    ProtocolError,
    SessionDetached,
)  # fmt: skip
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.state.records import RecordUnreadable

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
TABLES: dict[str, type[Condition]] = {
    table.__name__: table for table in (CoreCondition, BrokerCondition, SparkCondition)
}
EVERY = [condition for table in TABLES.values() for condition in table]
LONGEST = 40


class _Sample(Condition):
    QUEUE_NOT_FOUND = "Queue {queue!r} does not exist.", "Create it, or set {option}=ifMissing."


def fields(condition: Condition) -> set[str]:
    found = string.Formatter().parse(f"{condition.what} {condition.action}")
    return {name for _, name, _, _ in found if name is not None}


@pytest.fixture(scope="module")
def uses() -> list[tuple[str, str, str, ast.Call | None]]:
    """Place, table, condition and call of each mention in the code."""
    found: list[tuple[str, str, str, ast.Call | None]] = []
    for package in ("amqp_core", "amqp_spark", "jobs"):
        for path in sorted((ROOT / package).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
            for node in ast.walk(tree):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in TABLES:
                    place = f"{path.relative_to(ROOT)}:{node.lineno}"
                    found.append((place, node.value.id, node.attr, calls.get(id(node))))
    return found


def test_text_of_a_condition() -> None:
    text = _Sample.QUEUE_NOT_FOUND(queue="ticks", option="declare")
    assert text == "[AMQP_QUEUE_NOT_FOUND] Queue 'ticks' does not exist. Create it, or set declare=ifMissing."
    error = AmqpError(text)
    assert error.condition == condition_of(text) == "AMQP_QUEUE_NOT_FOUND"
    assert reason(error) == "Queue 'ticks' does not exist"
    assert AmqpError("without one").condition is None


@pytest.mark.parametrize("condition", EVERY, ids=lambda condition: condition.title)
def test_grammar(condition: Condition) -> None:
    """One sentence what, one what to do, at most 40 words together."""
    for sentence in (condition.what, condition.action):
        assert sentence.endswith("."), sentence
        assert ". " not in sentence.removesuffix("."), sentence
        assert sentence[0].isupper() or sentence[0] in "{'", sentence
    assert len(f"{condition.what} {condition.action}".split()) <= LONGEST


def test_every_use_gives_the_fields_of_its_condition(uses: list[tuple[str, str, str, ast.Call | None]]) -> None:
    wrong = []
    for place, table, name, call in uses:
        condition = TABLES[table].__members__.get(name)
        if condition is None:
            wrong.append(f"{place}: no condition {table}.{name}")
        elif call is not None and (call.args or {each.arg for each in call.keywords} != fields(condition)):
            wrong.append(f"{place}: {table}.{name} takes {sorted(fields(condition))}")
    assert not wrong, "\n".join(wrong)


def test_every_condition_is_used(uses: list[tuple[str, str, str, ast.Call | None]]) -> None:
    used = {(table, name) for _, table, name, _ in uses}
    assert [c.title for c in EVERY if (type(c).__name__, c.name) not in used] == []


def without_condition(path: Path) -> Iterator[str]:
    """Places of a module where an error of ours gets a literal text. Some classes make the text of a reason or code."""
    module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            kind = getattr(module, node.func.id, None)
            makes_text = (
                EncodeError,
                ProtocolError,
                DecodeError,
                CommandFailed,
                SessionDetached,
                RecordUnreadable,
                MessageRejected,
            )
            if isinstance(kind, type) and issubclass(kind, AmqpError) and not issubclass(kind, makes_text):
                literal = any(isinstance(each, ast.JoinedStr | ast.Constant) for each in ast.walk(node.args[0]))
                if literal and not isinstance(node.args[0], ast.Call):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}: {kind.__name__}"


@pytest.mark.parametrize("package", ["amqp_core", "amqp_spark", "jobs"])
def test_every_error_has_a_condition(package: str) -> None:
    modules = [path for path in sorted((ROOT / package).rglob("*.py")) if path.name != "__main__.py"]
    found = [place for path in modules for place in without_condition(path)]
    assert found == []
