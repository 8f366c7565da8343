"""The options of the sink: parsing, all errors at once, and nothing secret shown."""

from __future__ import annotations

import pickle

import pytest

from amqp_spark.errors import OptionError
from amqp_spark.options import CONNECTION, SINK, SOURCE, SinkOptions

MINIMAL = {"url": "amqp://localhost/default"}
SECRET = "s3cret"


def parse(**options: object) -> SinkOptions:
    return SinkOptions.parse(MINIMAL | {key.replace("__", "."): value for key, value in options.items()})


def problems(**options: object) -> tuple[str, ...]:
    with pytest.raises(OptionError) as caught:
        parse(**options)
    assert SECRET not in str(caught.value)
    return caught.value.problems


def test_defaults_are_those_of_the_contract() -> None:
    options = parse()
    assert (options.exchange, options.exchange_from_column) == ("", False)
    assert (options.routing_key, options.delivery_mode, options.ttl, options.priority) == (None, None, None, None)
    assert (options.content_type, options.timestamp_unit) == (None, "auto")
    assert options.delivery_guarantee == "at-least-once"
    assert (options.transactional_id, options.batch_id) == (None, None)
    assert (options.on_unroutable, options.max_in_flight, options.stamp_headers) == ("fail", 10_000, False)
    assert options.client_name == options.connect_options().client_name == "amqp_spark"


def test_values_are_what_the_wire_needs() -> None:
    options = parse(deliveryMode="Persistent", ttl="60000", priority=7, STAMPHEADERS=True, routingKey="")
    assert (options.delivery_mode, options.ttl, options.priority) == (2, 60_000, 7)
    assert options.stamp_headers is True
    assert options.routing_key == ""  # an empty routing key is one
    assert parse(deliveryMode="non-persistent").delivery_mode == 1
    assert parse(exchange="").exchange == ""


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("exchange", "x" * 256, "at most 255 bytes"),
        ("routingKey", "€" * 86, "at most 255 bytes"),
        ("contentType", "x" * 256, "at most 255 bytes"),
        ("contentType", "\ud800", "in UTF-8"),
        ("deliveryMode", "2", "non-persistent, persistent"),
        ("ttl", "-1", "0 to"),
        ("ttl", "1m", "0 to"),
        ("priority", "256", "0 to 255"),
        ("deliveryGuarantee", "at-most-once", "at-least-once, exactly-once"),
        ("onUnroutable", "ignore", "fail, discard"),
        ("maxInFlight", "0", "1 to 1000000"),
        ("stampHeaders", "yes", "true or false"),
        ("exchangeFromColumn", "1", "true or false"),
        ("batchId", "-1", "0 to"),
        ("timestampUnit", "us", "auto, s, ms"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(name: str, value: str, allowed: str) -> None:
    (found,) = problems(**{name: value})
    assert repr(name) in found
    assert allowed in found


def test_all_errors_come_at_once_and_name_the_side_that_an_option_belongs_to() -> None:
    found = problems(url="http://x", queue="q", priority="high", topic="t", routingkeyy="k", transactionalId="t")
    text = "\n".join(found)
    assert len(found) == 6
    assert "Option 'queue' is not known to the sink. Remove it, since it belongs to the source." in text
    assert "Option 'topic' is not known to the sink. Use 'exchange' instead." in text
    assert "Use 'routingKey' instead" in text
    assert "'transactionalId' has no effect" in text


@pytest.mark.parametrize("protocol", ["0-9-1", "0-9"])
def test_exactly_once_is_refused_where_the_protocol_cannot_have_it(protocol: str) -> None:
    given = {"deliveryGuarantee": "exactly-once", "transactionalId": "t", "protocol": protocol}
    (found,) = problems(**given)
    assert f"exactly-once', which is not allowed with protocol={protocol}. Allowed: at-least-once, with stable" in found
    assert "exactly-once with protocol=0-10 if the broker is Broker-J" in found
    assert parse(**given | {"protocol": "auto"}).exactly_once, "the broker decides"


@pytest.mark.parametrize(("value", "refused"), [("0", True), ("1", False), ("86400", False), ("86401", True)])
def test_a_broker_that_blocks_is_waited_for_within_limits(value: str, refused: bool) -> None:
    if refused:
        assert "a number of seconds from 1 to 86400" in problems(blockedTimeout=value)[0]
    else:
        assert parse(blockedTimeout=value).blocked_timeout == float(value)


def test_what_exactly_once_needs_is_told_at_once() -> None:
    found = problems(deliveryGuarantee="exactly-once", heartbeat="0")
    assert len(found) == 2
    assert "'transactionalId' is required" in found[0]
    assert "'heartbeat' has the value 0" in found[1]
    assert "1 to 200 bytes" in problems(deliveryGuarantee="exactly-once", transactionalId="x" * 201)[0]
    assert "'transactionTimeout' has no effect" in problems(transactionTimeout="60")[0]
    options = parse(deliveryGuarantee="exactly-once", transactionalId="t")
    assert (options.exactly_once, options.transaction_timeout) == (True, 3600)
    assert not parse().exactly_once


@pytest.mark.parametrize("value", ["19", "0", "-1", "86401", "1h", ""])
def test_a_transaction_timeout_has_bounds(value: str) -> None:
    (found,) = problems(deliveryGuarantee="exactly-once", transactionalId="t", transactionTimeout=value)
    assert "'transactionTimeout'" in found
    assert repr(value) in found
    assert "20 to 86400" in found
    for bound in (20, 86_400):
        options = parse(deliveryGuarantee="exactly-once", transactionalId="t", transactionTimeout=bound, heartbeat=2)
        assert options.transaction_timeout == bound


def test_a_transaction_outlasts_the_wait_for_a_writer_that_died() -> None:
    given = {"deliveryGuarantee": "exactly-once", "transactionalId": "t", "heartbeat": "30"}
    (found,) = problems(**given, transactionTimeout="74")
    assert "'transactionTimeout' has the value 74, which is not allowed with heartbeat=30" in found
    assert "Allowed: 75 to 86400" in found
    assert parse(**given, transactionTimeout="75").transaction_timeout == 75


def test_the_login_is_checked_and_never_shown() -> None:
    options = parse(username="u", password=SECRET)
    assert options.connect_options().password == SECRET
    assert SECRET not in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options
    assert "without 'password'" in problems(username="u")[0]
    assert "an amqp:// URL, which is not TLS" in problems(tls__caFile="/ca.pem")[0]


def test_every_default_in_the_table_parses_to_the_value_used_when_absent() -> None:
    for option in SINK:
        if option.absent is not None and option.name != "exchange":
            assert option.kind.parse(option.default) == option.absent, option.name


def test_an_option_has_one_field_on_each_side() -> None:
    for table in ((*CONNECTION, *SOURCE), (*CONNECTION, *SINK)):
        names = [option.name.lower() for option in table]
        fields = [option.field for option in table]
        assert len(set(names)) == len(names)
        assert len(set(fields)) == len(fields)


def test_a_priority_above_9_is_for_0_9_1() -> None:
    assert parse(priority=255).priority == 255
    (found,) = problems(priority=10, protocol="0-10")
    assert found == (
        "[AMQP_OPTION_INVALID] Option 'priority' has the value 10, which is not allowed with 0-10. "
        "Allowed: an integer from 0 to 9."
    )
