"""Ask the broker how many messages are left in the queues, on a separate connection.

On a connection that receives, the answer would arrive after all transfers that are under way. The connection goes to
the same host, since another one of the list may be another broker. It is opened when it is first needed, then kept.
Nothing depends on it: while it fails, the last known backlog is reported.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from amqp_core.errors import AmqpError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from amqp_core.api import Client
    from amqp_spark.connect import Connector
    from amqp_spark.datasource.queue_consumer import QueueConsumer
    from amqp_spark.datasource.receive_buffer import ReceiveBuffer

    Hosts = tuple[tuple[str, int], ...]

_log = logging.getLogger(__name__)

SURVEY_SECONDS: Final = 10.0
"""Least time between two queries for the backlog: on qpidd each one scans the queue."""
SERVICE_SECONDS: Final = 0.5
"""Interval at which the connection is serviced, since it needs heartbeats: half of the shortest heartbeat interval."""


class BacklogSurvey:
    """A thread that asks for the backlog of all queues of a query, every :data:`SURVEY_SECONDS` while Spark calls."""

    def __init__(self, consumers: Sequence[QueueConsumer], held: ReceiveBuffer, connector: Connector) -> None:
        self._consumers = consumers
        self._held = held
        self._connector = connector
        self._clients: dict[Hosts, Client] = {}
        """By the hosts that they could connect to: one, unless the consumers are connected to several."""
        self._seen_call = held.last_call
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="amqp-backlog", daemon=True)

    def start(self) -> None:
        """Start the thread; it sends the first query after one interval."""
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """End the thread and its connection."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _run(self) -> None:
        waited = 0.0
        while not self._ended.wait(SERVICE_SECONDS):
            waited += SERVICE_SECONDS
            if waited >= SURVEY_SECONDS and self._held.last_call > self._seen_call:
                waited = 0.0
                self._seen_call = self._held.last_call
                self._try(self._survey)
            else:  # also while Spark does not call because a batch takes long
                self._try(self._service)
        self._close()

    def _try(self, what: Callable[[], None]) -> None:
        try:
            what()
        except AmqpError as error:
            _log.info("the query for the backlog of the queues failed: %s", error)
            self._close()

    def _survey(self) -> None:
        asked = [(consumer, consumer.beside_options) for consumer in self._consumers if consumer.connected]
        self._close(but={options.hosts for _, options in asked})
        for consumer, options in asked:
            client = self._clients.get(options.hosts)
            if client is None:
                client = self._clients[options.hosts] = self._connector(options)
            consumer.surveyed(client.query_queue(consumer.queue), counts_held=client.capabilities.counts_held_messages)

    def _service(self) -> None:
        for client in self._clients.values():
            client.service()

    def _close(self, *, but: Collection[Hosts] = ()) -> None:
        for hosts in [hosts for hosts in self._clients if hosts not in but]:
            self._clients.pop(hosts).close()
