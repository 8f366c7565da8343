"""The driver's connection to the broker of the logs: questions, asked again after a loss."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, TypeVar

from amqp_core.errors import AmqpError
from amqp_spark.connect import require_for_option
from amqp_spark.datasource import consumer_setup
from amqp_spark.datasource.kept_alive import KeptAlive
from amqp_spark.datasource.log.probe import LogProbe
from amqp_spark.datasource.log.retries import LogRetries
from amqp_spark.host_order import HostOrder
from amqp_spark.options import STREAM

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_spark.connect import Connector
    from amqp_spark.options import SourceOptions

T = TypeVar("T")

_log = logging.getLogger(__name__)


class LogBroker:
    """Asks about the logs of one query; for one thread. It connects at the first question, and prepares the logs."""

    def __init__(self, options: SourceOptions, connector: Connector) -> None:
        self._options = options
        self._connector = connector
        self._kept: KeptAlive | None = None
        self._probe: LogProbe | None = None
        self._known = False
        self._hosts = HostOrder()
        self.sessions = 0
        """Connections so far."""

    def ask(self, question: Callable[[LogProbe], T], *, known: bool = False) -> T:
        """Call ``question`` with a probe and return its result; after a lost connection, connect and call it again.

        ``known``: the logs were there before, as a checkpoint says.

        Raises:
            AmqpError: it cannot be answered, or the broker cannot be reached within the allowed attempts.
        """
        retries = LogRetries("the streams", self._options, known=known)
        while True:
            try:
                kept, probe = self._connected()
                with kept.use():
                    return question(probe)
            except AmqpError as error:
                self._hosts.lost()
                self.close()
                retries.known = known or self._known
                delay = retries.pause_after(error)
                if delay is None:
                    raise
                time.sleep(delay)

    def close(self) -> None:
        """Close the connection, if there is one."""
        kept, self._kept, self._probe = self._kept, None, None
        if kept is not None:
            kept.stop()
            kept.client.close()

    def _connected(self) -> tuple[KeptAlive, LogProbe]:
        if self._kept is None or self._probe is None:
            client = self._hosts.connect(self._connector, self._options.connect_options())
            try:
                require_for_option(client, "queueType", STREAM, "logs", "a queue type of this broker")
                for log in self._options.queues:
                    consumer_setup.prepare(client, log, self._options)
                probe = LogProbe(client)
                probe.find_empty(self._options.queues)
            except BaseException:
                client.close()
                raise
            self._known = True
            moved = self._hosts.moved()
            level = logging.WARNING if moved else logging.INFO
            _log.log(level, "the streams: reading offsets from %s%s", client.peer, moved)
            self.sessions += 1
            self._kept, self._probe = KeptAlive(client), probe
            self._kept.start()
        return self._kept, self._probe
