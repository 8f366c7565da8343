"""The doctor on logins and rights, and on the guarantees that follow: on the embedded broker, and without one."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import pytest

from amqp_core import ConnectOptions
from amqp_core.api import Capabilities
from amqp_spark.diagnosis import guarantees, rights
from amqp_spark.diagnosis.findings import Report
from amqp_spark.diagnosis.site import Site
from tests.box.logins_support import PASSWORD, PLAIN

if TYPE_CHECKING:
    from amqp_core.broker import Broker
    from tests.support.doctor import Doctor

PROTOCOLS = ("0-10", "0-9-1")


def test_a_refused_login_and_a_virtual_host_that_is_not_there(doctor: Doctor, guarded: Broker) -> None:
    told = doctor(guarded.url, login=("carol", "wr0ng-pass"))
    assert told.code == 3
    assert told.about("protocols")[0] == told.about("mechanisms")[0] == "ok"
    assert told.status("connection", "login") == "error"
    assert "password" in told.advice("connection", "login")
    told = doctor(guarded.url_of("nowhere"), login=("carol", PASSWORD))
    assert told.code == 3
    assert told.status("connection", "login") == "ok"
    assert told.status("connection", "virtual host") == "error"


def test_what_is_missing(doctor: Doctor, guarded: Broker) -> None:
    told = doctor(guarded.url, "--queue", "absent", "--exchange", "absent", *PLAIN, login=("carol", PASSWORD))
    assert told.code == 3
    for about in ("queue 'absent'", "exchange 'absent'"):
        assert told.status(about, "exists") == "error"
        assert "virtual host /" in told.value(about, "exists")
    assert told.found["guarantees", "source"][:2] == ("skipped", "not known: queue 'absent' cannot be used, see there")
    assert told.found["guarantees", "sink"][:2] == ("skipped", "not known: exchange 'absent' cannot be used, see there")
    assert not [name for section, name in told.found if section == "guarantees" and "exactly" in name]
    assert list(guarded._server.hosts["/"].queues) == ["ticks", "other"]


def test_one_of_two_queues_is_missing(doctor: Doctor, guarded: Broker) -> None:
    told = doctor(guarded.url, "--queue", "ticks", "--queue", "absent", *PLAIN, login=("carol", PASSWORD))
    assert (told.code, told.status("queue 'ticks'", "read")) == (3, "ok")
    assert told.found["guarantees", "source"][:2] == ("skipped", "not known: queue 'absent' cannot be used, see there")


@pytest.mark.parametrize("user", ["carol", "writer"])
def test_what_is_not_named_is_not_promised(doctor: Doctor, guarded: Broker, user: str) -> None:
    """The second one may read nothing."""
    told = doctor(guarded.url, *PLAIN, login=(user, PASSWORD))
    assert told.code == 0
    assert told.found["guarantees", "source"][:2] == (
        "skipped",
        "at-most-once, at-least-once, if the login may read the queue: not checked, since no queue was named",
    )
    assert told.found["guarantees", "sink"][:2] == (
        "skipped",
        "at-least-once, if the login may write to the exchange: not checked, since no exchange was named",
    )
    for name in ("source, exactly-once", "sink, exactly-once"):
        assert told.status("guarantees", name) == "skipped"
        assert told.value("guarantees", name).startswith("yes, with" if user == "carol" else "no: the login may not")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_login_that_may_only_read(doctor: Doctor, guarded: Broker, protocol: str) -> None:
    option = (*PLAIN, "--option", f"protocol={protocol}")
    told = doctor(guarded.url, "--queue", "ticks", *option, login=("reader", PASSWORD))
    assert told.code == 0
    assert told.status("queue 'ticks'", "read") == "ok"
    assert told.status("rights", "declare") == "warning"
    assert told.status("rights", "write") == "skipped"
    assert told.status("guarantees", "source") == "ok"
    assert told.status("guarantees", "source, exactly-once") == "skipped"
    told = doctor(guarded.url, "--queue", "ticks", "--exactly-once", *option, login=("reader", PASSWORD))
    offered = protocol == "0-10"
    assert told.code == (3 if offered else 2)
    assert told.status("rights", "declare") == ("error" if offered else "skipped"), "no right gives what is not offered"
    assert told.status("guarantees", "source, exactly-once") == "error"
    told = doctor(guarded.url, "--queue", "other", *option, login=("reader", PASSWORD))
    assert told.code == 3
    assert told.status("queue 'other'", "read") == told.status("guarantees", "source") == "error"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_login_that_may_only_write(doctor: Doctor, guarded: Broker, protocol: str) -> None:
    arguments = ("--exchange", "out", "--exchange", "amq.topic", *PLAIN, "--option", f"protocol={protocol}")
    told = doctor(guarded.url, *arguments, login=("writer", PASSWORD))
    assert told.code == 3
    assert told.status("exchange 'out'", "write") == "ok"
    assert told.status("exchange 'amq.topic'", "write") == "error"
    assert told.status("guarantees", "sink") == "error"


def test_the_least_rights_of_exactly_once_are_enough(doctor: Doctor, guarded: Broker) -> None:
    told = doctor(guarded.url, "--queue", "ticks", "--exactly-once", *PLAIN, login=("keeper", PASSWORD))
    assert told.code == 0
    assert told.status("guarantees", "source, exactly-once") == "ok"


def test_exactly_once_where_the_protocol_has_none(doctor: Doctor, amqp_broker: Broker) -> None:
    told = doctor(amqp_broker.url, "--exactly-once", "--option", "protocol=0-9-1")
    assert told.code == 2
    assert told.status("guarantees", "source, exactly-once") == "error"
    assert told.status("guarantees", "sink, exactly-once") == "error"


def test_heartbeats_that_are_off(doctor: Doctor, amqp_broker: Broker) -> None:
    assert doctor(amqp_broker.url, "--option", "heartbeat=0").status("connection", "heartbeat") == "warning"
    told = doctor(amqp_broker.url, "--option", "heartbeat=0", "--exactly-once")
    assert (told.code, told.status("connection", "heartbeat")) == (2, "error")


# --- without a broker


RABBITMQ = Capabilities(counts_deliveries=True, distributed_transactions=False, local_transactions=False)


def test_a_right_that_is_not_known_is_a_condition() -> None:
    report = Report("here")
    site = Site(ConnectOptions(hosts=(("h", 1),)), queues=("a",), exchanges=("x",))
    guarantees.examine(report, site, RABBITMQ, rights.Rights(declare=True, write=True), {"a": "quorum"})
    told = {each.name: (each.status.value, each.value) for each in report.findings}
    assert told["source"] == ("ok", "at-most-once, at-least-once, if the login may read the queue, which is not known")
    assert told["source, exactly-once"] == ("ok", "yes: quorum, if the login may read the queue, which is not known")
    assert told["sink"] == ("ok", "at-least-once")


@pytest.mark.parametrize(
    ("types", "status", "text"),
    [
        ({"a": "stream", "b": "stream"}, "ok", "yes: stream"),
        ({"a": "stream", "b": "quorum"}, "error", "may not declare the lock"),
        ({"a": "stream"}, "error", "may not declare the lock"),
        ({"a": "classic", "b": "stream"}, "error", "'a' is a classic queue,"),
        ({"a": "classic", "b": "classic"}, "error", "'a', 'b' are classic queues,"),
    ],
)
def test_a_login_that_may_not_declare_locks(types: dict[str, str], status: str, text: str) -> None:
    report = Report("here")
    site = Site(ConnectOptions(hosts=(("h", 1),)), queues=("a", "b"), exactly_once=True)
    guarantees.examine(report, site, RABBITMQ, rights.Rights(declare=False), types)
    found = report.of("guarantees", "source, exactly-once")
    assert found is not None
    assert found.status == status
    assert text in found.value
    is_needed = "declare" in rights.needed(site, RABBITMQ, types).now
    assert is_needed == ("lock" in text)


def test_a_login_that_may_not_read_queues_of_its_own_has_no_exactly_once() -> None:
    report = Report("here")
    site = Site(ConnectOptions(hosts=(("h", 1),)), queues=("a",), exactly_once=True)
    able = Capabilities(**{field.name: field.name != "counts_deliveries" for field in fields(Capabilities)})
    found = rights.Rights(declare=True, local_transactions=True, distributed_transactions=True, own_queues=False)
    guarantees.examine(report, site, able, found, {})
    for name in ("source, exactly-once", "sink, exactly-once"):
        finding = report.of("guarantees", name)
        assert finding is not None
        assert finding.value.startswith("no: "), name


def test_a_queue_whose_type_the_login_may_not_learn() -> None:
    report = Report("here")
    site = Site(ConnectOptions(hosts=(("h", 1),)), queues=("a", "b"), exactly_once=True)
    guarantees.examine(report, site, RABBITMQ, rights.Rights(declare=True), {"a": "quorum"})
    found = report.of("guarantees", "source, exactly-once")
    assert found is not None
    assert (found.status, found.value) == ("error", "not known: the type of 'b' could not be learned")
    assert found.advice.startswith("Let the login be granted")


def test_a_queue_that_will_get_the_default_type_of_the_broker() -> None:
    report = Report("here")
    site = Site(ConnectOptions(hosts=(("h", 1),)), queues=("a",), exactly_once=True, declares=True)
    guarantees.examine(report, site, RABBITMQ, rights.Rights(declare=True), {})
    found = report.of("guarantees", "source, exactly-once")
    assert found is not None
    assert found.advice.startswith("Set queueType=quorum, if declare=ifMissing makes the queue. Else: let the login")
