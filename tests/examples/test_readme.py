"""README.md of the examples lists all of them; each begins with three lines of text."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import pytest

from tests.examples.examples_support import EXAMPLES

if TYPE_CHECKING:
    from pathlib import Path

PROGRAMS = sorted(
    path
    for path in EXAMPLES.rglob("*")
    if path.suffix in {".py", ".sh"} and "data" not in path.relative_to(EXAMPLES).parts
)


def test_the_list_is_complete() -> None:
    listed = set(re.findall(r"\]\(([\w./]+)\)", (EXAMPLES / "README.md").read_text(encoding="utf-8")))
    there = {path.name for path in EXAMPLES.iterdir() if path.name not in {"README.md", "__pycache__"}}
    assert {name.removesuffix("/") for name in listed if not name.startswith("../")} == there


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_an_example_begins_with_three_lines_of_text(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        lines = (ast.get_docstring(ast.parse(text)) or "").splitlines()
    else:
        _, *rest = text.splitlines()
        lines = [line for line in rest[: rest.index("set -eu")] if line.startswith("# ")]
    assert len([line for line in lines if line]) == 3
