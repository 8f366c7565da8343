"""Heartbeats of a connection: when to send one, and when a silent peer counts as lost. No I/O, no clock."""

from __future__ import annotations


class Heartbeat:
    """The heartbeats of one side of a connection. Not thread-safe.

    Attributes:
        interval_s: seconds between heartbeats, as agreed with the peer; 0: no heartbeats.
        sent, received: set by the owner when data was sent or received; :meth:`tick` resets them.
    """

    __slots__ = ("_last_received", "_last_sent", "_last_tick", "interval_s", "received", "sent")

    def __init__(self, interval_s: int) -> None:
        self.interval_s = interval_s
        self.sent = False
        self.received = False
        self._last_tick: float | None = None
        self._last_sent = 0.0
        self._last_received = 0.0

    def tick(self, now: float, *, reading: bool = True, is_open: bool = True) -> tuple[bool, float | None, bool]:
        """Decide what is due.

        Args:
            now: monotonic time, seconds.
            reading: ``False`` while the caller deliberately leaves the socket unread: silence then proves nothing.
            is_open: whether the connection is open; before and after that there are no heartbeats.

        Returns:
            Whether to send a heartbeat now, the time of the next call (``None``: no heartbeats), and whether the peer
            was silent for two intervals.
        """
        if self._last_tick is None:
            self._last_tick = self._last_sent = self._last_received = now
        # It is known only that data was sent or received since the previous tick. Sent counts as the earliest moment,
        # received as the latest: so no heartbeat is late, and no live peer is taken for silent.
        if self.sent:
            self._last_sent = max(self._last_sent, self._last_tick)
        if self.received or not reading:
            self._last_received = now
        self._last_tick = now
        self.sent = self.received = False
        interval = self.interval_s
        if not interval or not is_open:
            return False, None, False
        due = now - self._last_sent >= interval
        if due:
            self._last_sent = now
        silent = now - self._last_received >= 2 * interval
        half = now + interval / 2  # so that silence is noticed after two and a half intervals at the latest
        return due, min(self._last_sent + interval, self._last_received + 2 * interval, half), silent
