"""How long an answer to message.stop is waited for (0-10 section message.stop): a stuck session may send heartbeats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_core.transport import SILENCE_S, monotonic

if TYPE_CHECKING:
    from amqp_core.v0_10.driver import Driver

# A broker that sends fewer bytes in SILENCE_S sends heartbeats at most.
_FLOWING_BYTES = 4096


class AwaitedStop:
    """The first of the stops of a subscription that is not known to be answered, and since when nothing has come."""

    def __init__(self, client: Driver) -> None:
        self._client = client
        self._id: int | None = None
        self._moved_at = 0.0
        self._moved_bytes = 0

    def sent(self, stop_id: int) -> None:
        """Record a stop by its command id; if one before it is not answered, the wait goes on."""
        if self._id is None or self._client.is_complete(self._id):
            self._id = stop_id
            self.moved()

    def moved(self) -> None:
        """Record that something has come, so that the wait begins anew."""
        self._moved_at, self._moved_bytes = monotonic(), self._client.received_bytes

    def is_overdue(self, latest: int) -> bool:
        """Whether a stop is overdue; ``latest``: the last one, which is not answered.

        That is so when nothing but heartbeats has come for 60 seconds, or two heartbeats if these take longer: a broker
        may need so long for settlements that were not announced as silence.
        """
        client = self._client
        assert self._id is not None
        if client.is_complete(self._id):
            self._id = latest
            self.moved()
        may_be_silent = not client.reading or client.is_silence_allowed(monotonic())
        if may_be_silent or client.received_bytes - self._moved_bytes >= _FLOWING_BYTES:
            self.moved()
        return monotonic() - self._moved_at >= max(SILENCE_S, 2.0 * client.connection.heartbeat_s)
