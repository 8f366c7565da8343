"""Which broker a state in a spool belongs to.

The spool does not tell that by itself, and names do not either: nodes of one cluster may have several, and a broker
that is set up anew has the one before. So the state records the name of an exchange with a random part, the *anchor*,
which is declared before the state is written. A broker or virtual host without that exchange is another one.
"""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING

from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import StateError
from amqp_spark.options.kinds import shown_location
from amqp_spark.state.queue import allowed

if TYPE_CHECKING:
    from amqp_core.api import Client
    from amqp_spark.datasource.exactly_once.recovery import Consumer

_log = logging.getLogger(__name__)


class Anchor:
    """The anchor of the state of one queue. ``name``: as the state records it; empty before there is one."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self.name = ""

    def check(self, client: Client, recorded: str, *, adopt: bool) -> None:
        """Check that the broker has the recorded anchor; empty: the state is of a release that had none.

        ``adopt``: with another broker, a new anchor follows. It must not be the one before: with that, the other broker
        could take the state back.

        Raises:
            StateError: it is another broker or virtual host.
        """
        if not recorded or client.query_routes([(recorded, None)]).answers()[0].exists:
            self.name = recorded
            return
        if not adopt:
            spool = shown_location(self._consumer.spool)
            raise StateError(
                SparkCondition.CONSUMER_OTHER_BROKER(consumer=self._consumer.shown, spool=spool, exchange=recorded)
            )
        _log.warning("%s: its state is of another broker or virtual host, and is adopted", self._consumer.shown)
        self.name = ""

    def declare(self, client: Client) -> None:
        """Declare an anchor, unless there is one.

        Raises:
            StateError: the login may not.
        """
        if self.name:
            return
        names = self._consumer.names
        name = names.anchor(secrets.token_hex(8))
        with allowed(f"declare the exchange {name!r}", names.owner):
            client.declare_exchange(name, "direct", durable=True)
        self.name = name
