"""The way to each host, storey by storey: name, port, TLS, and the versions of AMQP that the port answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_core.address import AUTO_PROTOCOL
from amqp_core.errors import AmqpError, ConnectionLost
from amqp_core.transport import Transport, lenient_context, resolve
from amqp_core.version_probe import VERSIONS, ask
from amqp_spark.diagnosis import tls
from amqp_spark.diagnosis.findings import Report, Status, listed, told
from amqp_spark.diagnosis.site import Host

if TYPE_CHECKING:
    import ssl

    from amqp_core.address import ConnectOptions
    from amqp_core.version_probe import Answer


def examine(report: Report, options: ConnectOptions) -> bool:
    """Look at every host of the list; return whether the port of at least one is open.

    A host that cannot be used is an error if it is the only one, else a warning: the next one is tried.
    """
    wrong = Status.ERROR if len(options.hosts) == 1 else Status.WARNING
    hosts = [Host(host, port, wrong) for host, port in options.hosts]
    opened = []
    for host in hosts:
        is_open = True  # also after an unexpected error: the login tells more
        with report.examining(host.section, status=wrong):
            is_open = _examine_host(report, options, host)
        opened.append(is_open)
    return any(opened)


def _examine_host(report: Report, options: ConnectOptions, host: Host) -> bool:
    section, timeout, wrong = host.section, options.connect_timeout, host.wrong
    try:
        report.ok(section, "name", listed(resolve(host.name, host.port, timeout=timeout)))
    except AmqpError as error:
        report.refused(section, "name", error, status=wrong)
        return False
    try:
        Transport.connect(host.name, host.port, timeout=timeout, context=None).close()
    except AmqpError as error:
        advice = "Start the broker, or correct host and port; a firewall in between may drop the connection"
        report.refused(section, "port", error, status=wrong, advice=advice)
        return False
    report.ok(section, "port", f"{host.port} is open")
    context = None
    if options.tls:
        is_tls = True
        with report.examining(section, name="examination of TLS", status=wrong):
            is_tls = tls.examine(report, options, host)
        if not is_tls:
            return True
        context = lenient_context(options)  # no login is sent
    _versions(report, options, host, context)
    return True


def _versions(report: Report, options: ConnectOptions, host: Host, context: ssl.SSLContext | None) -> None:
    """Ask for each version. A port that is silent is not asked again; one that closes the connection is."""
    section = host.section
    answers: list[Answer] = []
    failure: AmqpError | None = None
    for version in VERSIONS:
        try:
            answers.append(ask(host.name, host.port, version, timeout=options.connect_timeout, context=context))
        except ConnectionLost as error:
            failure = failure or error
        except AmqpError as error:
            failure = failure or error
            break
    served = [each for each in answers if each.served]
    usable = [each for each in served if options.protocol in (AUTO_PROTOCOL, each.version)]
    instead = sorted({each.instead for each in answers if each.instead})
    also = f"; to others it answers with {listed(instead)}" if instead else ""
    if usable:
        report.ok(section, "protocols", f"AMQP {listed(each.version for each in served)}{also}")
        report.ok(section, "mechanisms", listed(usable[0].mechanisms) or "none")
        return
    if served:
        advice = f"Set the option protocol to {' or '.join(each.version for each in served)}, or remove it"
        value = f"AMQP {listed(each.version for each in served)}, not {options.protocol}"
    elif instead:
        advice = "Give the port for AMQP 0-10, 0-9-1 or 0-9"
        if any("TLS" in each for each in instead):
            advice = "Write amqps:// for TLS"
        value = f"none that the connector speaks: it answers with {listed(instead)}"
    else:
        value = told(failure)[0] if failure is not None else "no answer"
        advice = "Give the port for AMQP, or write amqps:// for TLS"
        if options.tls:
            advice = "Look into the log of the broker: it may require a client certificate (tls.certFile)"
    report.add(section, "protocols", host.wrong, value, advice)
