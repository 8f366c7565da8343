"""The connection: login, broker, virtual host, what was agreed, and the time of a round trip."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Final

from amqp_core.address import is_loopback
from amqp_core.errors import AmqpError, AuthenticationFailed, VirtualHostRefused
from amqp_spark.cli.errors import EXIT_OPTIONS

if TYPE_CHECKING:
    from amqp_core.api import Capabilities, Client
    from amqp_spark.diagnosis.findings import Report
    from amqp_spark.diagnosis.site import Site

SECTION: Final = "connection"
ROUNDS: Final = 20
_SLOW_MS: Final = 100.0
"""A round trip above this is a warning: each batch and each task has a few of them."""
_READABLE: Final = frozenset({"PLAIN", "AMQPLAIN", "CRAM-MD5"})
"""Mechanisms whose password a listener learns or can try out without TLS."""


def examine(report: Report, site: Site) -> Capabilities | None:
    """Connect, log in, and report what was agreed; return what the broker can do, ``None`` if that does not work."""
    try:
        client = site.connect()
    except AuthenticationFailed as error:
        report.refused(SECTION, "login", error)
        return None
    except VirtualHostRefused as error:
        report.ok(SECTION, "login", f"accepted for {_who(site)}")
        report.refused(SECTION, "virtual host", error)
        return None
    except AmqpError as error:
        report.refused(SECTION, "connection", error)
        return None
    with client:
        _login(report, site, client)
        properties = client.server_properties
        product = " ".join(str(properties[name]) for name in ("product", "version") if properties.get(name))
        report.ok(SECTION, "broker", f"{product or 'it does not say which'}, AMQP {client.protocol}, at {client.peer}")
        report.ok(SECTION, "virtual host", site.virtual_host(client.protocol))
        _heartbeat(report, site, client)
        report.ok(SECTION, "frame size", f"{client.max_frame_size:,} bytes at most")
        try:
            _round_trip(report, client)
        except AmqpError as error:
            report.refused(SECTION, "round trip", error)
            return None
        return client.capabilities


def _who(site: Site) -> str:
    return "a login without a name" if site.options.username is None else repr(site.options.username)


def _login(report: Report, site: Site, client: Client) -> None:
    value = f"{client.mechanism} as {_who(site)}"
    host = client.peer.rpartition(":")[0].strip("[]")
    if client.mechanism in _READABLE and not site.options.tls and not is_loopback(host):
        advice = "Use amqps://, or a mechanism of SCRAM: others on the network can read the password"
        report.warn(SECTION, "login", f"{value}, without TLS", advice)
    else:
        report.ok(SECTION, "login", value)


def _heartbeat(report: Report, site: Site, client: Client) -> None:
    if client.heartbeat_s:
        asked = f" ({site.options.heartbeat} s were asked for)" if client.heartbeat_s != site.options.heartbeat else ""
        report.ok(SECTION, "heartbeat", f"{client.heartbeat_s:g} s{asked}")
        return
    value = "none: a broker that is gone may not be noticed"
    advice = "Set the option heartbeat to 1 or more"
    if site.options.heartbeat:
        advice = "Let the broker's administrator turn heartbeats on"
    if site.exactly_once:
        report.fail(SECTION, "heartbeat", f"{value}, and exactly-once needs them", advice, exit_code=EXIT_OPTIONS)
    else:
        report.warn(SECTION, "heartbeat", value, advice)


def _round_trip(report: Report, client: Client) -> None:
    """Measure calls that change nothing, each answered by the broker."""
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        client.sync()
        times.append((time.perf_counter() - began) * 1000)
    value = f"median {statistics.median(times):.1f} ms, worst of {ROUNDS} {max(times):.1f} ms"
    if statistics.median(times) > _SLOW_MS:
        report.warn(SECTION, "round trip", value, "Run Spark nearer to the broker, or make batches larger")
    else:
        report.ok(SECTION, "round trip", value)
