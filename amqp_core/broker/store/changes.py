"""What has changed since the last commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    Row = Sequence[object]

_INSERT: Final = {
    "messages": "INSERT INTO messages VALUES (?,?,?,?,?,?,?,?,?,?)",
    "entries": "INSERT INTO entries VALUES (?,?,?,?,?,?)",
}
_DELETE: Final = {"messages": "DELETE FROM messages WHERE id = ?", "entries": "DELETE FROM entries WHERE id = ?"}


class Changes:
    """Statements in their order, and rows of messages, which come and go by the thousand.

    A row that is added and removed between two commits is never written.
    """

    def __init__(self) -> None:
        self._statements: list[tuple[str, Sequence[Row]]] = []
        self._added: dict[str, dict[int, Row]] = {"messages": {}, "entries": {}}
        self._removed: dict[str, list[tuple[int]]] = {"messages": [], "entries": []}

    def __bool__(self) -> bool:
        return bool(self._statements) or any(self._added.values()) or any(self._removed.values())

    def do(self, statement: str, *row: object) -> None:
        """Carry out a statement."""
        self._statements.append((statement, [row]))

    def add(self, table: str, number: int, *row: object) -> None:
        """Add a row with the id ``number``."""
        self._added[table][number] = (number, *row)

    def remove(self, table: str, number: int) -> None:
        """Remove a row."""
        if self._added[table].pop(number, None) is None:
            self._removed[table].append((number,))

    def take(self) -> list[tuple[str, Sequence[Row]]]:
        """Statements with their rows, in their order; they are forgotten here."""
        statements: list[tuple[str, Sequence[Row]]] = []
        for table, rows in self._added.items():
            if rows:
                statements.append((_INSERT[table], list(rows.values())))
                self._added[table] = {}
        statements += self._statements
        self._statements = []
        for table, numbers in self._removed.items():
            if numbers:
                statements.append((_DELETE[table], numbers))
                self._removed[table] = []
        return statements
