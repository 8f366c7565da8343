"""The table of differences: each row is of a case that the suite has."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.conformance import test_dtx, test_errors_0_9, test_errors_0_10, test_routing_cases
from tests.conformance.differences import DIFFERENCES, Difference
from tests.conformance.targets import TARGETS

# Cases whose names are made of a table's.
TABLES = {
    *(f"0-9-1: {case}" for case in test_errors_0_9.ACTIONS),
    *(f"0-10: {case}" for case in test_errors_0_10.ACTIONS),
    *(f"dtx {case}" for case in test_dtx.ERRORS),
    *(f"headers: {case}" for case in test_routing_cases.HEADERS),
    *(f"topic: key {key!r}" for key in test_routing_cases.TOPICS),
    *(f"nack: requeue={requeue}" for requeue in (True, False)),
    *(
        f"alternate exchange: accept-mode {mode}{discard}"
        for mode in ("none", "explicit")
        for discard in ("", ", discard-unroutable")
    ),
}


@cache
def names_in_calls() -> frozenset[str]:
    """Names that are written out where a case asks for its outcome; and what queues are declared with."""
    found = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                first = node.args[0]
                if node.func.attr in ("expects", "serves") and isinstance(first, ast.Constant):
                    found.add(str(first.value))
            elif isinstance(node, ast.Dict):
                keys = [each.value for each in node.keys if isinstance(each, ast.Constant)]
                found.add(f"declare: {', '.join(map(str, keys))}")
    return frozenset(found)


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda each: each.reason[:40])
def test_a_row_is_of_cases_that_exist(difference: Difference) -> None:
    assert set(difference.cases) <= TABLES | names_in_calls()
    assert set(difference.targets) <= {str(each) for each in TARGETS}
    assert difference.reason
