"""The examination, storey by storey; it goes on as far as the broker can be reached, and says where it ends."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, cast

from amqp_core.address import format_address
from amqp_spark.diagnosis import clock, connection, exchanges, guarantees, network, queues, rights, spark_side
from amqp_spark.diagnosis.findings import Report, listed
from amqp_spark.diagnosis.site import Site
from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import OptionError
from amqp_spark.options import CONNECTION, EXACTLY_ONCE, SINK, SOURCE, SinkOptions, SourceOptions
from amqp_spark.options.connection import ConnectionSettings
from amqp_spark.options.parsing import Given, is_sparks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

_BASE: Final = frozenset(option.name.lower() for option in CONNECTION)
_SOURCE: Final = frozenset(option.name.lower() for option in SOURCE)
_SINK: Final = frozenset(option.name.lower() for option in SINK)
_SHARED: Final = _SOURCE & _SINK
"""Options that do not show whether a source or a sink is meant."""


def doctor(options: Mapping[str, object]) -> Report:
    """Find out what a broker, a login and this Spark can do together, and what is wrong; docs/doctor.md.

    Nothing of the user's is touched: no message is read or published, nothing is bound. What the login may do is tried
    on temporary exclusive queues, which end with their session.

    Args:
        options: of a source, of a sink, or of both, by name in any case. ``queue`` and ``exchange`` are looked at; with
            ``deliveryGuarantee=exactly-once`` it is an error if the broker or the login cannot give it.

    Returns:
        The report: a notebook shows it as a table, ``print`` as text; ``frame()`` is a DataFrame of pandas, ``json()``
        text for programs, ``exit_code`` that of the command.

    Raises:
        OptionError: with every problem of the options.
    """
    site = site_of(options)
    report = report_of(site)
    examine(report, site, session=_active_session)
    return report


def _active_session() -> SparkSession | None:
    """The session of this process, if there is one: Spark is not started, and not imported for the question."""
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.sql import SparkSession  # noqa: PLC0415

    return SparkSession.getActiveSession()


def report_of(site: Site) -> Report:
    """An empty report about a broker."""
    options = site.options
    where = listed(format_address(*each) for each in options.hosts)
    vhost = f"virtual host {options.virtual_host!r}" if options.virtual_host else "the default virtual host"
    return Report(f"{'amqps' if options.tls else 'amqp'}://{where}, {vhost}", secrets=[options.password or ""])


def examine(report: Report, site: Site, *, session: Callable[[], SparkSession | None]) -> None:
    """Examine a broker and a login, then the side of Spark. An unexpected error ends its section, not the others.

    Args:
        report: gets the findings, each as soon as it is known.
        site: what is examined.
        session: returns the session to examine; it may start one; ``None``: without one.
    """
    with report.examining(connection.SECTION):
        _examine_broker(report, site)
    with report.examining(spark_side.SECTION):
        spark_side.examine(report, session)


def _examine_broker(report: Report, site: Site) -> None:
    if not network.examine(report, site.options):
        if len(site.options.hosts) > 1:
            advice = "Start one of the brokers, or correct the list"
            report.fail(connection.SECTION, "connection", "no host of the list can be reached", advice)
        report.skip(connection.SECTION, "login", "not tried, since no host can be reached")
        return
    capabilities = None
    with report.examining(connection.SECTION):
        capabilities = connection.examine(report, site)
    if capabilities is None:
        report.skip(guarantees.SECTION, "everything else", "not tried, since there is no connection")
        return
    with report.examining(connection.SECTION, name="examination of the clock"):
        clock.examine(report, site)
    types: dict[str, str] = {}
    for queue in site.queues:
        with report.examining(queues.section(queue)):
            kind = queues.examine(report, site, queue)
            if kind is not None:
                types[queue] = kind
    for exchange in site.exchanges:
        with report.examining(exchanges.section(exchange)):
            exchanges.examine(report, site, exchange)
    found = rights.Rights()
    with report.examining(rights.SECTION):
        found = rights.examine(report, site, capabilities, types)
    with report.examining(guarantees.SECTION):
        guarantees.examine(report, site, capabilities, found, types)


def settings_of(options: Mapping[str, object]) -> ConnectionSettings:
    """Check options of the connection, without I/O.

    Raises:
        OptionError: with all problems.
    """
    given = Given(CONNECTION, "connection", options)
    if given.problems:
        raise OptionError(given.problems)
    return ConnectionSettings(**cast("dict[str, Any]", given.values))


def site_of(options: Mapping[str, object]) -> Site:
    """What the options of a source, of a sink, or of both name: all are checked.

    Raises:
        OptionError: with all problems.
    """
    sides: tuple[tuple[type[SourceOptions | SinkOptions], frozenset[str]], ...] = (
        (SourceOptions, _SOURCE - _BASE),
        (SinkOptions, _SINK - _BASE),
    )
    connection = {key: value for key, value in options.items() if key.lower() in _BASE}
    settings = settings_of(connection)
    given = {key.lower() for key, value in options.items() if value is not None and not is_sparks(key.lower())} - _BASE
    problems = [
        SparkCondition.OPTION_UNKNOWN(option=key, side="source and sink", remedy="Remove it, or see docs/options.md")
        for key in options
        if key.lower() in given - _SOURCE - _SINK
    ]
    lowered = {key.lower(): value for key, value in options.items()}
    if not given & (_SOURCE ^ _SINK):
        # Neither side is named: each value has to suit one of them. The queue that a source requires may be missing.
        shared = connection | {key: value for key, value in options.items() if key.lower() in _SHARED}
        of_source = Given((*CONNECTION, *SOURCE), "source", shared | {"queue": "any"}).problems
        of_sink = Given((*CONNECTION, *SINK), "sink", shared).problems
        problems += of_source if of_source and of_sink else []
    declares, queue_type = False, None
    for kind, names in sides:
        if given & names - _SHARED:
            own = {key: value for key, value in options.items() if key.lower() in names | _BASE}
            try:
                parsed = kind.parse(own)
                if isinstance(parsed, SourceOptions):
                    declares, queue_type = parsed.declare == "ifMissing", parsed.queue_type
            except OptionError as error:
                problems += [each for each in error.problems if each not in problems]
    if problems:
        raise OptionError(problems)
    queues = tuple(part.strip() for part in str(lowered.get("queue") or "").split(",") if part.strip())
    exchange = lowered.get("exchange")
    return Site(
        settings.connect_options(),
        queues=queues,
        exchanges=(str(exchange or ""),) if given & {"exchange", "routingkey"} else (),
        exactly_once=str(lowered.get("deliveryguarantee") or "").strip().lower() == EXACTLY_ONCE,
        declares=declares,
        queue_type=queue_type,
    )
