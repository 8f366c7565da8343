"""Connections that outlive a task: one pool per process, so that the next micro-batch does not log in again.

A task leases one connection and gives it back only if everything on it succeeded; any other connection is ended, so
that no partly sent message is completed later. One daemon thread sends heartbeats on idle connections (the task waits
for its rows, or no task holds the connection) and closes connections that were idle for too long. After a fork the
child starts with an empty pool: the connections belong to the parent.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Final

from amqp_core.errors import AmqpError
from amqp_spark.connect import connect
from amqp_spark.host_order import HostOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from amqp_core.address import ConnectOptions
    from amqp_core.api import Client
    from amqp_spark.connect import Connector

_log = logging.getLogger("amqp_spark.sink")

IDLE_SECONDS: Final = 30.0
"""Seconds that a connection is kept for the next task; less frequent micro-batches log in anew."""
LONGEST_PAUSE_SECONDS: Final = 1.0
"""Maximum seconds between two checks of idle connections."""


class Lease:
    """One connection leased to one task.

    The task holds its lock, except inside :meth:`resting`; end the lease with :meth:`give_back` or :meth:`abort`. If an
    earlier task has used it (``reused``), it may have broken unnoticed since. ``notes`` has facts about the session
    that its users record for later users.
    """

    def __init__(self, pool: Connections, options: ConnectOptions, client: Client, *, reused: bool) -> None:
        self.client = client
        self.reused = reused
        self.notes: dict[str, object] = {}
        self.options = options
        self.lock = threading.Lock()
        self.idle_since: float | None = None
        self._pool = pool
        self.lock.acquire()

    @contextlib.contextmanager
    def resting(self) -> Iterator[None]:
        """Let the pool's thread use the client for heartbeats while the task waits for something else."""
        self.lock.release()
        try:
            yield
        finally:
            self.lock.acquire()

    def give_back(self) -> None:
        """Keep the connection for the next task. All transfers sent on it must be complete."""
        self._pool.take_back(self)

    def abort(self) -> None:
        """End the connection so that no partly sent message of this task is enqueued later (:meth:`Client.discard`)."""
        self._pool.forget(self)
        self.client.discard()


class Connections:
    """The connection pool of a process; thread-safe. Connections are keyed by their options only. ``connector`` tries
    the host list once and reads a password file each time."""

    def __init__(
        self,
        connector: Connector = connect,
        *,
        idle_seconds: float = IDLE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = connector
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._reset()
        _pools.add(self)

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._leases: set[Lease] = set()
        self._keeper: threading.Thread | None = None

    def lease(self, options: ConnectOptions, hosts: HostOrder | None = None) -> Lease:
        """Lease a connection for one task: a kept one that still works, else a new one
        (:func:`amqp_spark.connect.connect`). ``hosts``: which of them the task tries first."""
        hosts = hosts or HostOrder()
        while (kept := self._take_idle(options)) is not None:
            kept.lock.acquire()
            try:
                kept.client.service()
            except AmqpError:  # it died while idle; this task does not fail for it
                kept.abort()
                continue
            kept.reused = True
            hosts.use(kept.client)
            return kept
        lease = Lease(self, options, hosts.connect(self._connect, options), reused=False)
        with self._changed:
            self._leases.add(lease)
            self._keep()
        return lease

    def apart(self) -> Connections:
        """Make a separate pool that connects in the same way; the caller closes it."""
        return Connections(self._connect, idle_seconds=self._idle_seconds, clock=self._clock)

    @property
    def idle_count(self) -> int:
        """Number of idle connections."""
        with self._changed:
            return sum(lease.idle_since is not None for lease in self._leases)

    def take_back(self, lease: Lease) -> None:
        """See :meth:`Lease.give_back`."""
        with self._changed:
            lease.idle_since = self._clock()
            lease.lock.release()
            self._keep()

    def forget(self, lease: Lease) -> None:
        """Remove a lease from the pool; the caller ends its connection."""
        with self._changed:
            self._leases.discard(lease)

    def close(self) -> None:
        """Close idle connections and drop those in use; for the end of the process."""
        with self._changed:
            leases, self._leases = self._leases, set()
            self._changed.notify_all()
        for lease in leases:
            if lease.lock.acquire(blocking=False):
                lease.client.close()
            else:
                lease.client.abort()

    def after_fork(self) -> None:
        """In the child process: drop the copies of the parent's sockets without sending anything to the broker."""
        leases = self._leases
        self._reset()  # threads that do not exist here may have held the locks
        for lease in leases:
            lease.client.abort()

    def _take_idle(self, options: ConnectOptions) -> Lease | None:
        if self._pid != os.getpid():  # a fork that Python did not report
            self.after_fork()
        with self._changed:
            idle = [lease for lease in self._leases if lease.idle_since is not None and lease.options == options]
            if not idle:
                return None
            newest = max(idle, key=lambda lease: lease.idle_since or 0.0)
            newest.idle_since = None
            return newest

    # --- the thread that keeps connections alive

    def _keep(self) -> None:
        """Start the thread if it does not run; called under the lock."""
        if self._keeper is None:
            self._keeper = threading.Thread(
                target=self._run, args=(self._changed,), name="amqp-connections", daemon=True
            )
            self._keeper.start()

    def _run(self, changed: threading.Condition) -> None:
        while changed is self._changed:  # otherwise all leases were dropped, with their lock
            with changed:
                if not self._leases:
                    self._keeper = None
                    return
                changed.wait(self._pause())
                leases = list(self._leases)
            for lease in leases:
                self._look_after(lease)

    def _pause(self) -> float:
        """Seconds to the next check: a quarter of the shortest heartbeat, as a peer may give up after two."""
        heartbeats = [lease.options.heartbeat for lease in self._leases if lease.options.heartbeat]
        return min([LONGEST_PAUSE_SECONDS, self._idle_seconds, *(heartbeat / 4 for heartbeat in heartbeats)])

    def _look_after(self, lease: Lease) -> None:
        if not lease.lock.acquire(blocking=False):
            return  # in use: its task sends the heartbeats
        ended = False
        try:
            lease.client.service()
        except AmqpError:
            ended = True  # a task that waits for its rows gets the error from the client
        except Exception:  # noqa: BLE001  whatever it is, the other connections still need this thread
            ended = True
            _log.exception("looking after the connection to %s failed", lease.client.peer)
            lease.client.abort()  # part of what was read may be lost, even a reject: a resting task must not go on
        finally:
            with self._changed:
                idle_since = lease.idle_since
                over = idle_since is not None and (ended or self._clock() - idle_since >= self._idle_seconds)
                if over:
                    self._leases.discard(lease)
            lease.lock.release()
        if over:
            lease.client.close()


_pools: weakref.WeakSet[Connections] = weakref.WeakSet()
_shared: dict[str, Connections] = {}
_shared_lock = threading.Lock()


def shared(purpose: str = "") -> Connections:
    """The shared pool of this process for one purpose. Sessions that took part in transactions serve only that one."""
    with _shared_lock:
        if purpose not in _shared:
            _shared[purpose] = Connections()
        return _shared[purpose]


def _after_fork_in_child() -> None:
    global _shared_lock  # noqa: PLW0603 - another thread may have held it
    _shared_lock = threading.Lock()
    for pool in list(_pools):
        pool.after_fork()


@atexit.register
def _at_exit() -> None:
    for pool in list(_pools):
        pool.close()


if hasattr(os, "register_at_fork"):  # Windows has no forks, and a client of Spark Connect there imports this
    os.register_at_fork(after_in_child=_after_fork_in_child)
