"""The user's exchanges: that they exist, and of which type. Nothing is published or bound."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_core.errors import AmqpError

if TYPE_CHECKING:
    from amqp_spark.diagnosis.findings import Report
    from amqp_spark.diagnosis.site import Site


def section(exchange: str) -> str:
    """Title of the findings about an exchange."""
    return f"exchange {exchange!r}" if exchange else "default exchange"


def examine(report: Report, site: Site, exchange: str) -> None:
    """Report whether an exchange exists."""
    about = section(exchange)
    if not exchange:
        report.ok(about, "exists", "yes: it routes to the queue that the routing key names")
        return
    try:
        with site.connect() as client:
            [route] = client.query_routes([(exchange, None)]).answers()
            protocol = client.protocol
    except AmqpError as error:
        report.refused(about, "exists", error)
        return
    if not route.exists:
        advice = "Create it, or correct the name or the virtual host: the connector declares no exchange"
        report.fail(about, "exists", f"no, not in virtual host {site.virtual_host(protocol)}", advice)
        return
    kind = f"type {route.exchange_type}" if route.exchange_type else f"AMQP {protocol} does not tell its type"
    report.ok(about, "exists", f"yes, {kind}")
