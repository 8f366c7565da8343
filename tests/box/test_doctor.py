"""The doctor on the embedded broker: what it says of each storey, and that it touches nothing of the user's."""

from __future__ import annotations

import io
import json
import re
import signal
import socket
import sys
import threading
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
import trustme

import amqp_spark
from amqp_core.broker import Broker, running
from amqp_core.errors import OutcomeUnknown, PublishingBlocked, UnauthorizedAccess
from amqp_spark.demo.java import require_java
from amqp_spark.diagnosis import clock, findings, guarantees, network, queues, rights, spark_side, tls
from amqp_spark.diagnosis.command import main
from amqp_spark.diagnosis.examination import site_of
from amqp_spark.diagnosis.findings import Report
from amqp_spark.errors import OptionError
from tests.box.logins_support import PASSWORD, PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from amqp_core.v0_10.client import Client as Client010
    from tests.box.conftest import Connect010
    from tests.support.doctor import Doctor

PROTOCOLS = ("0-10", "0-9-1")


def at(port: int) -> str:
    return f"amqp://127.0.0.1:{port}"


# --- all is well


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_is_said_of_a_broker_that_works(
    doctor: Doctor, amqp_broker: Broker, vhost: str, connect_0_10: Connect010, protocol: str
) -> None:
    connect_0_10().declare_queue("ticks", durable=True)
    url = amqp_broker.url_of(vhost)
    told = doctor(url, "--queue", "ticks", "--exchange", "amq.topic", "--option", f"protocol={protocol}")
    assert told.code == 0
    assert told.about("protocols")[1] == "AMQP 0-10, 0-9-1, 0-9"
    assert "SCRAM-SHA-256, PLAIN" in told.about("mechanisms")[1]
    assert told.value("connection", "login") == "SCRAM-SHA-256 as 'guest'"
    assert f"amqp_core broker {amqp_spark.__version__}, AMQP {protocol}" in told.value("connection", "broker")
    assert told.value("connection", "virtual host") == vhost
    assert told.value("connection", "heartbeat") == "30 s"
    assert re.match(r"median [\d.]+ ms, worst of 20 [\d.]+ ms$", told.value("connection", "round trip"))
    assert re.match(r"[\d,]+ bytes at most$", told.value("connection", "frame size"))
    assert told.value("queue 'ticks'", "exists").startswith("yes, 0 messages")
    assert told.status("queue 'ticks'", "read") == told.status("exchange 'amq.topic'", "write") == "ok"
    assert {told.status("rights", name) for name in ("declare", "write", "read")} == {"ok"}
    if protocol == "0-10":
        assert told.value("queue 'ticks'", "type") == "standard, durable"
        assert told.value("exchange 'amq.topic'", "exists") == "yes, type topic"
        assert told.status("guarantees", "source, exactly-once") == "ok"
        assert told.status("guarantees", "sink, exactly-once") == "ok"
    else:
        assert "differs by less than" in told.value("connection", "clock")
        assert told.status("guarantees", "sink, exactly-once") == "skipped"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_of_the_users_is_touched(
    doctor: Doctor, amqp_broker: Broker, vhost: str, connect_0_10: Connect010, protocol: str
) -> None:
    """A queue that would get everything published to its exchange, and lose everything read from it."""
    client = connect_0_10()
    client.declare_queue("mine", auto_delete=True)  # the end of a consumer would delete it
    client.declare_exchange("fan", "fanout")
    client.bind("mine", "fan", "")
    for body in (b"first", b"second"):
        client.publish_to_queue("mine", body, content_type="text/plain")
    client.confirm()
    exchange = client.query_exchange("fan")
    arguments = ("--queue", "mine", "--exchange", "fan", "--exactly-once", "--option", f"protocol={protocol}")
    doctor(amqp_broker.url_of(vhost), *arguments)
    host = amqp_broker._server.hosts[vhost]
    assert list(host.queues) == ["mine"], "temporary queues are gone"
    assert client.query_exchange("fan") == exchange
    assert not client.bound("fan", queue="mine").queue_not_matched
    messages = taken(client, "mine", 2)
    assert [message.body for message in messages] == [b"first", b"second"]
    assert not any(message.delivery.redelivered for message in messages)
    assert not client.transactions.recover()


def taken(client: Client010, queue: str, count: int) -> list[Any]:
    info = client.query_queue(queue)
    assert info is not None
    assert (info.message_count, info.subscriber_count) == (count, 0)
    fetcher = client.fetcher(queue)
    fetcher.grant(count)
    return [fetcher.take_one(timeout=60.0) for _ in range(count)]


def test_what_may_surprise_about_a_queue(
    doctor: Doctor, amqp_broker: Broker, vhost: str, connect_0_10: Connect010
) -> None:
    arguments: dict[str, object] = {
        "x-max-length": 5,
        "x-message-ttl": 60_000,
        "x-dead-letter-exchange": "amq.direct",
        "x-delivery-limit": 3,
    }
    client = connect_0_10()
    client.declare_queue("small", arguments=arguments)
    client.subscribe("small")
    told = doctor(amqp_broker.url_of(vhost), "--queue", "small")
    assert told.code == 0
    about = "queue 'small'"
    assert told.status(about, "exists") == told.status(about, "type") == "warning"
    assert "1 consumer" in told.value(about, "exists")
    assert "not durable" in told.value(about, "type")
    assert told.found[about, "limits"][:2] == ("warning", "x-max-length=5")
    assert told.found[about, "time to live"][:2] == ("warning", "x-message-ttl=60000")
    assert told.found[about, "delivery limit"][:2] == ("warning", "x-delivery-limit=3")
    assert told.found[about, "dead letters"][:2] == ("ok", "x-dead-letter-exchange=amq.direct")


# --- the way to the broker


def test_a_name_that_is_not_resolved(doctor: Doctor) -> None:
    told = doctor("amqp://no-such-host.invalid", "--option", "connectTimeout=2")
    assert told.code == 3
    assert told.status("no-such-host.invalid:5672", "name") == "error"
    assert "resolved" in told.value("no-such-host.invalid:5672", "name")
    assert told.found["connection", "login"][:2] == ("skipped", "not tried, since no host can be reached")
    assert told.status("Spark", "driver") == "ok"


def test_a_port_without_a_listener(doctor: Doctor, free_port: int) -> None:
    told = doctor(at(free_port))
    assert told.code == 3
    assert told.about("name")[0] == "ok"
    assert told.about("port")[0] == "error"
    assert "refused" in told.about("port")[1]


def test_one_of_two_hosts_is_enough(doctor: Doctor, amqp_broker: Broker, free_port: int) -> None:
    told = doctor(f"amqp://127.0.0.1:{free_port},127.0.0.1:{amqp_broker.port}")
    assert told.code == 0
    assert told.status(f"127.0.0.1:{free_port}", "port") == "warning"
    assert told.status("connection", "login") == "ok"


def test_none_of_two_hosts(doctor: Doctor, free_port: int) -> None:
    told = doctor(f"amqp://127.0.0.1:{free_port},localhost:{free_port}")
    assert told.code == 3
    assert told.value("connection", "connection") == "no host of the list can be reached"


@contextmanager
def answering(data: bytes) -> Iterator[int]:
    """A port that answers each connection with the same bytes as soon as it hears something, and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with closing(connection):
                    if connection.recv(8):
                        connection.sendall(data)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(
    ("answer", "value", "advice"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP", "Give the port for AMQP"),
        (b"AMQP\x03\x01\x00\x00", "AMQP 1.0 with SASL", "Give the port for AMQP"),
        (b"\x15\x03\x01\x00\x02\x02\x28", "TLS", "Write amqps://"),
    ],
)
def test_a_port_that_speaks_something_else(doctor: Doctor, answer: bytes, value: str, advice: str) -> None:
    with answering(answer) as port:
        told = doctor(at(port))
    assert told.code == 3
    status, said, what_to_do = told.about("protocols")
    assert status == "error"
    assert value in said
    assert advice in what_to_do
    assert told.status("connection", "connection") == "error"


def test_a_protocol_that_the_broker_does_not_speak(doctor: Doctor) -> None:
    with answering(b"AMQP\x01\x01\x00\x0a") as port:
        told = doctor(at(port), "--option", "protocol=0-9-1")
    assert told.code == 3
    assert told.about("protocols")[0] == "error"


# --- TLS


def certificate(authority: trustme.CA, directory: Path, name: str, **times: Any) -> dict[str, Any]:
    made = authority.issue_cert(name, **times)
    cert, key = directory / "server.pem", directory / "server.key"
    cert.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
    made.private_key_pem.write_to_path(key)
    return {"tls_cert": cert, "tls_key": key}


NOW = datetime.now(UTC)
LONG_AGO, YESTERDAY = NOW - timedelta(days=90), NOW - timedelta(days=1)
SOON, LATER = NOW + timedelta(days=5, hours=1), NOW + timedelta(days=90)


@pytest.mark.parametrize(
    ("name", "times", "trusted", "statuses", "code"),
    [
        ("127.0.0.1", {}, True, ("ok", "ok", "ok"), 0),
        ("127.0.0.1", {"not_after": SOON}, True, ("warning", "ok", "ok"), 0),
        ("other.example.org", {}, True, ("ok", "ok", "error"), 3),
        ("127.0.0.1", {"not_before": LONG_AGO, "not_after": YESTERDAY}, True, ("error", "skipped", "skipped"), 3),
        ("127.0.0.1", {"not_before": SOON, "not_after": LATER}, True, ("error", "skipped", "skipped"), 3),
        ("127.0.0.1", {}, False, ("ok", "error", "skipped"), 3),
    ],
    ids=["good", "ends-soon", "wrong-name", "expired", "not-yet", "unknown-authority"],
)
def test_certificates(
    doctor: Doctor,
    tmp_path: Path,
    name: str,
    times: dict[str, datetime],
    trusted: bool,
    statuses: tuple[str, str, str],
    code: int,
) -> None:
    authority = trustme.CA()
    known = tmp_path / "ca.pem"
    (authority if trusted else trustme.CA()).cert_pem.write_to_path(known)
    with running(**certificate(authority, tmp_path, name, **times)) as broker:
        told = doctor(broker.url, "--option", f"tls.caFile={known}")
    assert told.code == code
    found = tuple(told.about(f"certificate {what}")[0] for what in ("ends", "chain", "name"))
    assert found == statuses
    assert ("not valid now" in told.about("certificate chain")[1]) == (found[0] == "error")
    assert told.about("TLS")[:2] == ("ok", "TLSv1.3")
    assert told.about("protocols")[0] == "ok", "asked without a login, whatever the certificate is"
    assert (("connection", "login") in told.found) == (code == 0)


def test_a_name_that_is_not_verified(doctor: Doctor, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    options = (f"tls.caFile={tmp_path / 'ca.pem'}", "tls.verifyHostname=false")
    with running(**certificate(authority, tmp_path, "other.example.org")) as broker:
        told = doctor(broker.url, *(word for option in options for word in ("--option", option)))
    assert told.code == 0
    assert told.about("certificate name")[0] == "warning"


def test_tls_on_a_port_without(doctor: Doctor, amqp_broker: Broker) -> None:
    told = doctor(f"amqps://127.0.0.1:{amqp_broker.port}")
    assert told.code == 3
    assert told.about("TLS")[0] == "error"
    assert "Use amqp://" in told.about("TLS")[2]


# --- the command line and the function


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "AMQP_OPTION_REQUIRED"),
        (("amqp://guest:s3cret@host",), "AMQP_URL_INVALID"),
        (("amqp://host", "--option", "password=s3cret"), "shows the password"),
        (("amqp://host", "--option", "heartbeat=x"), "'heartbeat' has the value 'x'"),
        (("amqp://host", "--queue", ""), "--queue has a name that is empty"),
        (("amqp://host", "--exchange", "x" * 256), "--exchange has a name"),
        (("amqp://host", "--master", "local"), "Add --spark"),
        (("amqps://host", "--option", "tls.caFile=/no/such"), "cannot be read"),
    ],
)
def test_a_command_line_that_is_wrong(doctor: Doctor, arguments: tuple[str, ...], said: str) -> None:
    code, out, err = doctor.run(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert "s3cret" not in err


def test_the_screen(doctor: Doctor, amqp_broker: Broker, vhost: str) -> None:
    code, out, _ = doctor.run(amqp_broker.url_of(vhost), "--queue", "absent")
    lines = out.splitlines()
    assert code == 3
    assert lines[0] == f"amqp://127.0.0.1:{amqp_broker.port}, virtual host '{vhost}'"
    absent = lines.index("queue 'absent'")
    assert lines[absent + 1].split() == ["✗", "exists", *f"no, not in virtual host {vhost}".split()]
    assert lines[absent + 2].split()[0] == "→"
    assert lines[-1].endswith("not tried or not offered")
    assert len(lines) < 50


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_queue_that_the_source_declares_may_be_missing(amqp_broker: Broker, vhost: str, protocol: str) -> None:
    login = {"url": amqp_broker.url_of(vhost), "username": "guest", "password": "guest", "protocol": protocol}
    report = amqp_spark.doctor(login | {"queue": "absent", "declare": "ifMissing"})
    exists, source = report.of("queue 'absent'", "exists"), report.of("guarantees", "source")
    assert exists is not None
    assert source is not None
    assert (exists.status, exists.value) == ("skipped", f"no, not in virtual host {vhost}: the source declares it")
    assert (source.status, source.value.partition(",")[0]) == ("ok", "at-most-once")
    assert report.exit_code == 0


def test_an_unexpected_error_ends_its_section_only(
    doctor: Doctor, guarded: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        raise ValueError(f"{PASSWORD} is no number\nmore")

    for module in (network, clock, queues, guarantees):
        name = "_versions" if module is network else "examine"
        monkeypatch.setattr(module, name, fail)
    told = doctor(guarded.url, "--queue", "ticks", "--exchange", "out", *PLAIN, login=("carol", PASSWORD))
    assert told.code == 1
    text = "unexpected error ValueError: <redacted> is no number"
    host = f"127.0.0.1:{guarded.port}"
    for about in (host, "queue 'ticks'", "guarantees"):
        assert told.found[about, "examination"][:2] == ("error", text)
    assert told.value("connection", "examination of the clock") == text
    assert told.status("connection", "login") == told.status("exchange 'out'", "exists") == "ok"
    assert told.status("rights", "declare") == told.status("Spark", "driver") == "ok"


def test_a_certificate_that_cannot_be_examined(doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> NoReturn:
        raise ValueError("no such time")

    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setattr(tls, "_examine_time", fail)
    with running(**certificate(authority, tmp_path, "127.0.0.1")) as broker:
        told = doctor(broker.url, "--option", f"tls.caFile={tmp_path / 'ca.pem'}")
    assert told.code == 1
    assert told.about("examination of TLS")[:2] == ("error", "unexpected error ValueError: no such time")
    assert told.about("protocols")[0] == told.status("connection", "login") == "ok"


def test_a_queue_that_fails_after_it_was_found(
    doctor: Doctor, guarded: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise UnauthorizedAccess(403, None, "access to it refused")

    monkeypatch.setattr(queues, "_properties", fail)
    told = doctor(guarded.url, "--queue", "ticks", *PLAIN, login=("carol", PASSWORD))
    assert told.code == 3
    assert (told.status("queue 'ticks'", "exists"), told.status("queue 'ticks'", "properties")) == ("ok", "error")


def test_texts_of_a_broker_do_not_move_the_cursor_or_look_like_findings() -> None:
    report = Report("here")
    report.ok("broker", "product", "\x1b[2Jhacked\n  ✓ login everything is fine\x9b")
    report.fail("broker", "answer", "é", "line\r")
    assert [line for line in report.lines() if "login" in line] == [
        "  ✓ product  \\x1b[2Jhacked\\n  ✓ login everything is fine\\x9b"
    ]
    assert all(line.isprintable() for line in report.lines())
    assert "é" in report.json()


def test_json_is_json_where_standard_output_has_few_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(out, encoding="ascii"))
    assert main(["amqp://127.0.0.1:1/%C3%A9%F0%9D%84%9E", "--json"]) == 3
    assert "virtual host 'é𝄞'" in json.loads(out.getvalue())["title"]


def test_an_unexpected_error_of_one_attempt(
    doctor: Doctor, amqp_broker: Broker, vhost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        raise RuntimeError

    monkeypatch.setattr(rights, "_publish", fail)
    monkeypatch.setattr(rights, "_may_write", fail)
    told = doctor(amqp_broker.url_of(vhost), "--exchange", "amq.topic")
    assert told.code == 1
    assert told.status("rights", "write") == told.status("exchange 'amq.topic'", "write") == "error"
    assert told.status("rights", "read") == "ok"
    assert told.status("guarantees", "sink, exactly-once") == "skipped", "not known"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_broker_that_confirms_nothing_is_not_taken_for_a_missing_right(
    doctor: Doctor, amqp_broker: Broker, vhost: str, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    """As one does that is low on memory."""

    def fail(*_: object) -> NoReturn:
        raise OutcomeUnknown("1 message was not confirmed") from PublishingBlocked("h:5672", 30.0, "low on memory")

    for client in ("v0_10.client.Client", "v0_9.publishing_client.PublishingClient"):
        monkeypatch.setattr(f"amqp_core.{client}.confirm", fail)
    told = doctor(amqp_broker.url_of(vhost), "--option", f"protocol={protocol}")
    assert told.code == 3
    assert told.found["rights", "write"][:2] == ("error", "h:5672 has blocked its publishers for 30 s: low on memory")
    assert "the login may not" not in told.value("guarantees", "sink, exactly-once")


@pytest.fixture
def _sigint_interrupts() -> Iterator[None]:
    """Also where this process was started in the background of a script, which makes it ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_sigint_interrupts")
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_sigint_prints_what_was_found_so_far(
    doctor: Doctor, amqp_broker: Broker, vhost: str, monkeypatch: pytest.MonkeyPatch, form: tuple[str, ...]
) -> None:
    monkeypatch.setattr(clock, "examine", lambda *_: signal.raise_signal(signal.SIGINT))
    code, out, err = doctor.run(amqp_broker.url_of(vhost), *form)
    assert code == 130
    assert "stopped by SIGINT" in err
    assert "round trip" in out
    assert "rights" not in out
    if form:
        assert json.loads(out)["exit_code"] == 130


def test_java(monkeypatch: pytest.MonkeyPatch, empty_path: Path) -> None:
    report = Report("here")
    spark_side.examine(report, lambda: None)
    found = report.of("Spark", "Java")
    assert found is not None
    assert (found.status, report.exit_code) == ("error", 1)
    assert empty_path.is_dir()


def test_a_spark_that_does_not_start_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> NoReturn:
        raise RuntimeError("An error occurred while calling x.\n: java.lang.Exception: no such master")

    monkeypatch.setattr(spark_side, "require_java", lambda: 17)
    report = Report("here")
    spark_side.examine(report, fail)
    found = report.of("Spark", "session")
    assert found is not None
    assert (found.value, report.exit_code) == ("Spark does not start: no such master", 1)


def test_without_java_spark_is_not_started(doctor: Doctor, free_port: int, empty_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spark_side, "require_java", require_java)
        told = doctor(at(free_port), "--spark", "--option", "connectTimeout=1")
    assert told.code == 3
    assert told.status("Spark", "Java") == "error"
    assert ("Spark", "session") not in told.found
    assert empty_path.is_dir()


def test_the_function_gives_a_table(doctor: Doctor, amqp_broker: Broker, vhost: str) -> None:
    login = {"url": amqp_broker.url_of(vhost), "username": "guest", "password": "guest"}
    report = amqp_spark.doctor(login | {"queue": "<b>, other", "routingKey": "x"})
    assert report.exit_code == 3
    frame = report.frame()
    assert list(frame.columns) == ["section", "name", "status", "value", "advice"]
    assert set(frame[frame.name == "exists"].section) == {"queue '<b>'", "queue 'other'", "default exchange"}
    assert frame.dtypes.nunique() == 1
    table = report._repr_html_()
    assert "<td" in table
    assert "queue &#x27;&lt;b&gt;&#x27;" in table
    assert repr(report).startswith("amqp://")
    assert doctor is not None


def test_the_function_names_all_wrong_options() -> None:
    with pytest.raises(OptionError, match="deliveryGuarantee=exactly-once") as told:
        amqp_spark.doctor({"url": "amqp://h", "queue": "q", "deliveryGuarantee": "exactly-once", "other": 1})
    assert len(told.value.problems) == 3
    with pytest.raises(OptionError, match="'queue' is required"):
        amqp_spark.doctor({"url": "amqp://h", "selector": "a = 1", "checkpointLocation": "/data"})
    with pytest.raises(OptionError, match="AMQP_OPTION_REQUIRED"):
        amqp_spark.doctor({"queue": "q"})


@pytest.mark.parametrize(
    ("option", "value"), [("deliveryGuarantee", "exactlyonce"), ("QUEUETYPE", "quorun"), ("timestampUnit", "ns")]
)
def test_the_function_checks_options_of_both_sides(option: str, value: str) -> None:
    with pytest.raises(OptionError, match=value) as told:
        amqp_spark.doctor({"url": "amqp://h", option: value})
    assert len(told.value.problems) == 1


def test_the_function_takes_a_value_that_suits_one_side() -> None:
    site = site_of({"url": "amqp://h", "deliveryGuarantee": "at-most-once", "queueType": "quorum"})
    assert (site.exactly_once, site.queues) == (False, ())
    assert site_of({"url": "amqp://h", "deliveryGuarantee": "exactly-once"}).exactly_once
    assert site_of({"url": "amqp://h", "deliveryGuarantee": " Exactly-once"}).exactly_once  # as source and sink take it


def test_a_text_of_an_error_becomes_value_and_advice() -> None:
    assert findings.told(ValueError("[AMQP_X] It is so. Change it.")) == ("It is so", "Change it")
    assert findings.told(ValueError("plain text")) == ("plain text", "")
    assert findings.told(ValueError()) == ("ValueError", "")


def test_a_terminal_that_shows_ascii_only() -> None:
    report = Report("somewhere")
    report.ok("a", "b", "fine")
    report.warn("a", "c", "hm", "look")
    report.fail("a", "d", "no", "do", exit_code=2)
    report.skip("a", "e", "not tried")
    assert "\n".join(report.lines(plain=True)).isascii()
    assert report.exit_code == 2


def test_a_package_that_is_missing_is_a_finding(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with running(**certificate(authority, tmp_path, "127.0.0.1")) as broker:
        monkeypatch.setitem(sys.modules, "cryptography", None)
        told = doctor(broker.url, "--option", f"tls.caFile={tmp_path / 'ca.pem'}")
    assert told.about("certificate")[:2] == ("skipped", "not looked at: package cryptography is missing")
    assert told.about("protocols")[0] == told.status("connection", "login") == "ok"
