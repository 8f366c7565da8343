"""The SQLite file: opened for one process alone, and written in whole commits."""

from __future__ import annotations

import os
import sqlite3
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from amqp_core.broker.error_conditions import BrokerCondition
from amqp_core.errors import AmqpError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

APPLICATION_ID: Final = 0x414D5150
"""``AMQP``: in the header of the file."""
VERSION: Final = 1
"""Of the tables."""
_TABLES: Final = """
CREATE TABLE exchanges (
    id INTEGER PRIMARY KEY, host TEXT NOT NULL, name TEXT NOT NULL, kind TEXT NOT NULL, auto_delete INTEGER NOT NULL,
    internal INTEGER NOT NULL, alternate TEXT, arguments TEXT NOT NULL);
CREATE TABLE queues (
    id INTEGER PRIMARY KEY, host TEXT NOT NULL, name TEXT NOT NULL, auto_delete INTEGER NOT NULL,
    arguments TEXT NOT NULL);
CREATE TABLE bindings (
    id INTEGER PRIMARY KEY, host TEXT NOT NULL, source TEXT NOT NULL, to_queue INTEGER NOT NULL,
    destination TEXT NOT NULL, key TEXT NOT NULL, arguments TEXT NOT NULL);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY, protocol TEXT NOT NULL, exchange TEXT NOT NULL, routing_key TEXT NOT NULL,
    header BLOB NOT NULL, body BLOB NOT NULL, persistent INTEGER NOT NULL, priority INTEGER NOT NULL, ttl_ms INTEGER,
    deaths TEXT NOT NULL);
CREATE TABLE entries (
    id INTEGER PRIMARY KEY, queue INTEGER NOT NULL, sequence INTEGER NOT NULL, message INTEGER NOT NULL, expires REAL,
    returns INTEGER NOT NULL);
CREATE TABLE branches (
    id INTEGER PRIMARY KEY, host TEXT NOT NULL, format INTEGER NOT NULL, global_id BLOB NOT NULL,
    branch_id BLOB NOT NULL);
CREATE TABLE branch_messages (
    id INTEGER PRIMARY KEY, branch INTEGER NOT NULL, message INTEGER NOT NULL, queue INTEGER NOT NULL);
CREATE TABLE branch_entries (id INTEGER PRIMARY KEY, branch INTEGER NOT NULL, entry INTEGER NOT NULL);
"""

_CONDITIONS: Final = {
    sqlite3.SQLITE_BUSY: BrokerCondition.STORE_IN_USE,
    sqlite3.SQLITE_FULL: BrokerCondition.STORE_FULL,
    sqlite3.SQLITE_NOTADB: BrokerCondition.STORE_DAMAGED,
    sqlite3.SQLITE_CORRUPT: BrokerCondition.STORE_DAMAGED,
    sqlite3.SQLITE_CANTOPEN: BrokerCondition.STORE_NOT_WRITABLE,
    sqlite3.SQLITE_READONLY: BrokerCondition.STORE_NOT_WRITABLE,
    sqlite3.SQLITE_PERM: BrokerCondition.STORE_NOT_WRITABLE,
}
"""What the primary result codes of SQLite mean here."""


class StoreError(AmqpError):
    """The store cannot be used."""


class Database:
    """The file. One thread at a time may use it.

    Args:
        path: of the file; it is made if it is not there.

    Raises:
        StoreError: it cannot be opened, is in use, damaged, of another version, or of another program.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # Messages are not for all users to read; the files beside it get the mode of this one. A file that is there is
        # not opened: closing it would end the locks that this process may have on it.
        with suppress(OSError):  # SQLite says what is wrong
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
        with self._errors("open"):
            # autocommit: transactions begin and end where this class says so
            self._connection = sqlite3.connect(path, isolation_level=None, timeout=0, check_same_thread=False)
        try:
            with self._errors("open"):
                self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def __repr__(self) -> str:
        return f"<store {str(self.path)!r}>"

    def select(self, table: str, columns: str, order: str = "id") -> Iterator[tuple[object, ...]]:
        """Rows of a table.

        Raises:
            StoreError: the file is damaged.
        """
        with self._errors("read"):
            yield from self._connection.execute(f"SELECT {columns} FROM {table} ORDER BY {order}")  # noqa: S608 - our own names

    def last(self, table: str) -> int:
        """The greatest id in a table; 0: it is empty."""
        with self._errors("read"):
            [(found,)] = self._connection.execute(f"SELECT max(id) FROM {table}")  # noqa: S608 - our own names
        return int(found or 0)

    def commit(self, statements: Sequence[tuple[str, Sequence[Sequence[object]]]]) -> None:
        """Carry out statements, each with its rows, and return when all are on the disk.

        Raises:
            StoreError: nothing is carried out.
        """
        connection = self._connection
        with self._errors("write"):
            connection.execute("BEGIN IMMEDIATE")
            try:
                for statement, rows in statements:
                    connection.executemany(statement, rows)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the file. What is committed is in it."""
        self._connection.close()

    def _prepare(self) -> None:
        execute = self._connection.execute
        # First of all: the lock then holds as long as the file is open, and no shared memory is needed for WAL.
        execute("PRAGMA locking_mode = EXCLUSIVE")
        [(application,)] = execute("PRAGMA application_id")
        [(version,)] = execute("PRAGMA user_version")
        [(tables,)] = execute("SELECT count(*) FROM sqlite_schema")
        if tables and application != APPLICATION_ID:
            raise StoreError(BrokerCondition.STORE_FOREIGN(path=self.path))
        if tables and version != VERSION:
            raise StoreError(BrokerCondition.STORE_OF_OTHER_VERSION(path=self.path, version=version, needed=VERSION))
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = FULL")
        if tables:
            [(found,), *_] = execute("PRAGMA quick_check(1)")
            if found != "ok":
                text = " ".join(str(found).split())[:200]
                raise StoreError(BrokerCondition.STORE_DAMAGED(operation="read", path=self.path, reason=text))
            execute("BEGIN IMMEDIATE")
            execute("COMMIT")
            return
        execute("BEGIN IMMEDIATE")
        for statement in _TABLES.strip().split(";\n"):
            execute(statement)
        execute(f"PRAGMA application_id = {APPLICATION_ID}")
        execute(f"PRAGMA user_version = {VERSION}")
        execute("COMMIT")

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Say in plain words what SQLite cannot do."""
        try:
            yield
        except UnicodeDecodeError as error:  # SQLite quotes what is damaged
            reason = "it holds a text that is not UTF-8"
            raise StoreError(BrokerCondition.STORE_DAMAGED(operation=what, path=self.path, reason=reason)) from error
        except (sqlite3.Error, OverflowError) as error:  # the latter: an integer of more than 64 bits
            code: int = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary one; errors of the module have none
            condition = _CONDITIONS.get(code, BrokerCondition.STORE_UNUSABLE)
            raise StoreError(condition(operation=what, path=self.path, reason=error)) from error
