"""How far the clock of the broker is from that of this machine, where the broker tells its time.

AMQP has no question for it. Brokers of 0-9-1 write the time into the header ``x-death`` of a message that becomes a
dead letter, in seconds: the doctor lets one expire on a temporary queue, into another one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from amqp_core.errors import AmqpError
from amqp_spark.diagnosis.connection import SECTION
from amqp_spark.diagnosis.findings import told
from amqp_spark.diagnosis.site import temporary_name

if TYPE_CHECKING:
    from amqp_core.api import Client
    from amqp_spark.diagnosis.findings import Report
    from amqp_spark.diagnosis.site import Site

_NAME: Final = "clock"
_ARRIVAL_SECONDS: Final = 5.0
_MOST_SECONDS: Final = 5.0
"""A larger difference is a warning."""


def examine(report: Report, site: Site) -> None:
    """Report the difference of the clocks, if it can be known."""
    try:
        with site.connect() as client:
            if client.protocol == "0-10":
                report.skip(SECTION, _NAME, "AMQP 0-10 does not tell the broker's time")
                return
            began = time.time()
            stamp = _time_of(client)
            ended = time.time()
    except AmqpError as error:
        report.skip(SECTION, _NAME, f"not known: {told(error)[0]}")
        return
    if stamp is None:
        report.skip(SECTION, _NAME, "this broker does not tell its time")
        return
    # its second has begun at some time between the two readings of our clock
    behind, ahead = began - (stamp + 1), stamp - ended
    apart = max(behind, ahead, 0.0)
    if apart > _MOST_SECONDS:
        which = "behind" if behind > 0 else "ahead of"
        value = f"the broker's is {apart:.0f} s {which} that of this machine"
        report.warn(SECTION, _NAME, value, "Set both by a time server: times of messages and expiry depend on it")
    else:
        report.ok(SECTION, _NAME, f"the broker's differs by less than {apart + 1:.0f} s")


def _time_of(client: Client) -> float | None:
    """The broker's time, in whole seconds since 1970."""
    expiring, dead = temporary_name(), temporary_name()
    client.declare_lock(dead)
    arguments: dict[str, object] = {
        "x-message-ttl": 0,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": dead,
    }
    client.declare_queue(expiring, exclusive=True, arguments=arguments)
    client.publish_to_queue(expiring, b"amqp-spark doctor", content_type="text/plain")
    client.confirm()
    fetcher = client.fetcher(dead)
    fetcher.grant(1)
    message = fetcher.take_one(timeout=_ARRIVAL_SECONDS)
    if message is None:
        return None
    client.accept([(message.transfer_id, message.transfer_id)])
    deaths = getattr(message, "headers", {}).get("x-death")
    first = deaths[0] if isinstance(deaths, list) and deaths else None
    stamp = first.get("time") if isinstance(first, dict) else None
    return float(stamp) if isinstance(stamp, int) else None
