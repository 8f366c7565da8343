"""The store: a file, and the virtual hosts whose durable changes it keeps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from amqp_core.broker.error_conditions import BrokerCondition
from amqp_core.broker.model.errors import Refused
from amqp_core.broker.model.virtual_host import VirtualHost
from amqp_core.broker.store.changes import Changes
from amqp_core.broker.store.database import Database, StoreError
from amqp_core.broker.store.records import Records
from amqp_core.broker.store.restoring import Restoring

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqp_core.broker.model.memory import Memory
    from amqp_core.broker.model.messages import Wire

_NUMBERED: Final = ("exchanges", "queues", "bindings", "messages", "entries", "branches")


class Store:
    """What is durable, in an SQLite file. Not thread-safe.

    The virtual hosts change in memory first. ``commit`` writes all changes since the last one at once: whoever sends
    bytes to clients calls it before, so that no client hears of a change that a crash could undo.

    Args:
        path: of the file; it is made if it is not there.
        wires: of the protocols, by the names that the file has for them.
        now: seconds since 1970.
        memory: counts the messages of all virtual hosts.

    Raises:
        StoreError: the file cannot be opened, is in use, damaged, of another version, or of another program.
    """

    def __init__(
        self, path: str | Path, wires: Mapping[str, Wire], *, now: float, memory: Memory | None = None
    ) -> None:
        self._memory = memory
        self._database = Database(Path(path))
        self._changes = Changes()
        self._copies: dict[int, int] = {}
        self._protocols = {wire: name for name, wire in wires.items()}
        self._places: dict[str, tuple[VirtualHost, Records]] = {}
        self._last: dict[str, int] = {}
        self._failure: StoreError | None = None
        """Why the file is not written any more."""
        try:
            self._restore(wires, now)
        except BaseException:
            self._database.close()
            raise

    def __repr__(self) -> str:
        return f"<store {str(self._database.path)!r}>"

    @property
    def hosts(self) -> dict[str, VirtualHost]:
        """The virtual hosts that are known."""
        return {name: host for name, (host, _) in self._places.items()}

    def host(self, name: str) -> VirtualHost:
        """The virtual host of that name; a new one if there is none."""
        known = name in self._places
        host, records = self._place(name)
        if not known:
            host.keep(records)
        return host

    @property
    def is_behind(self) -> bool:
        """Whether there are changes to write."""
        return bool(self._changes)

    def commit(self) -> None:
        """Write what has changed, and return when it is on the disk.

        Raises:
            StoreError: nothing is written, for whatever reason, and nothing will be. The memory is ahead of the file
                then, so the broker must stop.
        """
        if self._failure is not None:
            raise self._failure
        if not self._changes:
            return
        try:
            self._database.commit(self._changes.take())
        except StoreError as error:
            self._failure = error
            raise
        except Exception as error:  # a text that is none, no memory: the changes are gone all the same
            reason = f"{type(error).__name__}: {error}"
            self._failure = StoreError(
                BrokerCondition.STORE_UNUSABLE(operation="write", path=self._database.path, reason=reason)
            )
            raise self._failure from error

    def close(self) -> None:
        """Close the file; what is not committed is forgotten."""
        self._database.close()

    def _restore(self, wires: Mapping[str, Wire], now: float) -> None:
        restoring = Restoring(self._database, self._place, wires, now)
        try:
            restoring.run()
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, Refused) as error:
            reason = f"it holds what this program does not write ({type(error).__name__}: {error})"
            raise StoreError(
                BrokerCondition.STORE_DAMAGED(operation="read", path=self._database.path, reason=reason)
            ) from error
        self._copies |= restoring.copies()
        self._last = {table: self._database.last(table) for table in _NUMBERED}
        entries, messages = restoring.unneeded()
        for table, numbers in (("entries", entries), ("messages", messages)):
            for number in numbers:
                self._changes.remove(table, number)
        for number in entries:  # a later entry may get the number: a prepared branch must not settle that one
            self._changes.do("DELETE FROM branch_entries WHERE entry = ?", number)
        self.commit()
        for host, records in self._places.values():
            host.keep(records)
        restoring.pass_on()
        for host in self.hosts.values():
            host.trim(now=now)
        self.commit()

    def _place(self, name: str) -> tuple[VirtualHost, Records]:
        place = self._places.get(name)
        if place is None:
            records = Records(name, self._changes, self._number, self._protocols, self._copies)
            place = self._places[name] = VirtualHost(name, self._memory), records
        return place

    def _number(self, table: str) -> int:
        self._last[table] += 1
        return self._last[table]
