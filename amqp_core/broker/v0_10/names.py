"""The names of attached sessions: unique per login (0-10 section session.attach)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amqp_core.broker.v0_10.session import ServerSession


class SessionNames:
    """Attached sessions of all connections of a broker, by login and name. Not thread-safe."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[str, bytes], ServerSession] = {}

    def holder(self, username: str, name: bytes) -> ServerSession | None:
        """The session that is attached with this name."""
        return self._sessions.get((username, name))

    def add(self, username: str, name: bytes, session: ServerSession) -> None:
        """A session is attached."""
        self._sessions[username, name] = session

    def remove(self, username: str, name: bytes, session: ServerSession) -> None:
        """A session has ended; another may have its name by now."""
        if self._sessions.get((username, name)) is session:
            del self._sessions[username, name]
