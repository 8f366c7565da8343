"""The options of the source: parsing, all errors at once, and nothing secret shown."""

from __future__ import annotations

import pickle

import pytest

from amqp_spark import validate
from amqp_spark.errors import OptionError
from amqp_spark.options import CONNECTION, SOURCE, SourceOptions

MINIMAL = {"url": "amqp://localhost/default", "queue": "ticks"}
SECRET = "s3cret"


def parse(**options: object) -> SourceOptions:
    return SourceOptions.parse(MINIMAL | {key.replace("__", "."): value for key, value in options.items()})


def problems(options: dict[str, object]) -> tuple[str, ...]:
    with pytest.raises(OptionError) as caught:
        SourceOptions.parse(options)
    assert SECRET not in str(caught.value)
    return caught.value.problems


def problem(**options: object) -> str:
    found = problems(MINIMAL | {key.replace("__", "."): value for key, value in options.items()})
    assert len(found) == 1, found
    return found[0]


def test_defaults_are_those_of_the_contract() -> None:
    options = parse()
    assert options.hosts == (("localhost", 5672),)
    assert options.virtual_host == "default"
    assert options.queues == ("ticks",)
    assert options.delivery_guarantee == "at-least-once"
    assert (options.max_messages_per_trigger, options.max_bytes_per_trigger) == (None, 64 << 20)
    assert options.buffer_bytes == 128 << 20
    assert (options.num_partitions, options.bind, options.declare) == (2, (), "never")
    assert (options.mode, options.timestamp_unit, options.transfer) == ("FAILFAST", "auto", "auto")
    assert (options.heartbeat, options.connect_timeout) == (30, 10.0)
    assert (options.retry_max_attempts, options.retry_max_delay) == (10, 30.0)
    assert options.exclusive is False
    assert options.in_clear == ()
    assert options.connect_options().tls is False


def test_every_default_in_the_table_parses_to_the_value_used_when_absent() -> None:
    shown = {
        option.name: option
        for option in (*CONNECTION, *SOURCE)
        if option.default not in {"none", "required", "no limit"}
    }
    words = {"the system's", "driver host", "0 (any free port)", "2 x maxBytesPerTrigger"}
    for option in shown.values():
        if option.default not in words and option.name != "maxBytesPerTrigger":
            assert option.kind.parse(option.default) == option.absent, option.name


def test_keys_come_in_any_case() -> None:
    given = {"URL": MINIMAL["url"], "queue": "q", "MAXBYTESPERTRIGGER": "1k", "tls.verifyhostname": "true"}
    assert SourceOptions.parse({**given, "url": "amqps://localhost/default", "URL": "amqps://localhost/default"}).tls
    assert "given twice" in problems({**MINIMAL, "QUEUE": "other"})[0]


def test_sparks_own_keys_are_ignored() -> None:
    keys = {
        "path": "/x",
        "paths": '["/x"]',
        "outputMode": "append",
        "checkpointLocation": "/y",
        "queryname": "z",
        "spark.x": "1",
        "__internal": "2",
    }
    assert SourceOptions.parse({**MINIMAL, **keys}) == parse()
    assert parse(username=None) == parse()


def test_all_errors_come_at_once() -> None:
    found = problems({"url": "ftp://x", "maxbytes": "1", "heartbeat": "never", "mode": "shrug", "exclusive": "perhaps"})
    text = "\n".join(found)
    assert len(found) == 6
    for name in ("url", "maxbytes", "heartbeat", "mode", "exclusive", "queue"):
        assert name in text
    with pytest.raises(OptionError, match="6 options cannot be used"):
        SourceOptions.parse({"url": "ftp://x", "maxbytes": "1", "heartbeat": "never", "mode": "", "exclusive": "y"})


def test_what_spark_gives_of_a_table_is_told_in_one_sentence() -> None:
    properties = {"provider": "amqp", "owner": "root", **{f"option.{key}": value for key, value in MINIMAL.items()}}
    (text,) = problems({**MINIMAL, **properties, "option.password": SECRET})
    assert text.startswith(
        "[AMQP_TABLE_KEEPS_NO_OPTIONS] Spark gives a source in Python the options of CREATE TABLE only"
    )


@pytest.mark.parametrize(
    ("key", "suggested"),
    [
        ("queu", "queue"),
        ("queues", "queue"),
        ("password_file", "passwordFile"),
        ("max-bytes-per-trigger", "maxBytesPerTrigger"),
        ("maxMessagePerTrigger", "maxMessagesPerTrigger"),
        ("tlsCaFile", "tls.caFile"),
        ("cafile", "tls.caFile"),
        ("host", "url"),
        ("vhost", "url"),
        ("user", "username"),
        ("subscribe", "queue"),
        ("numPartition", "numPartitions"),
    ],
)
def test_misspelt_names_are_suggested(key: str, suggested: str) -> None:
    assert f"Use {suggested!r} instead" in problem(**{key: "1"})


def test_names_without_likeness_list_what_is_known_and_sink_options_say_so() -> None:
    assert "bufferBytes" in problem(zzz="1")
    assert "belongs to the sink" in problem(routingKey="1")


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("64m", 64 << 20), ("1G", 1 << 30), ("2kb", 2048), ("3 MiB", 3 << 20), ("1t", 1 << 40)],
)
def test_sizes(text: str, value: int) -> None:
    assert parse(maxBytesPerTrigger=text).max_bytes_per_trigger == value
    assert parse(maxBytesPerTrigger=text).buffer_bytes == 2 * value


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5g", "64x", "m", "1 2", "9999999999999999"])
def test_wrong_sizes(text: str) -> None:
    found = problem(maxBytesPerTrigger=text)
    assert repr(text) in found
    assert "64m" in found


def test_buffer_and_batch_size_fit_together() -> None:
    small = parse(bufferBytes="16m")
    assert (small.buffer_bytes, small.max_bytes_per_trigger) == (16 << 20, 16 << 20)
    large = parse(bufferBytes="1g")
    assert (large.buffer_bytes, large.max_bytes_per_trigger) == (1 << 30, 64 << 20)
    assert "the buffer must hold a batch" in problem(bufferBytes="1m", maxBytesPerTrigger="2m")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("15m", 900.0),
        ("15min", 900.0),
        ("90s", 90.0),
        ("500", 0.5),
        ("250ms", 0.25),
        ("2 H", 7200.0),
        ("1d", 86400.0),
        ("36500 d", 3153600000.0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse(maxTriggerDelay=text, minMessagesPerTrigger=5).max_trigger_delay == seconds
    assert parse(minMessagesPerTrigger=5).max_trigger_delay == 900.0
    assert parse().min_messages_per_trigger == 1


def test_least_and_most_of_a_batch_fit_together() -> None:
    assert parse(minMessagesPerTrigger=5, maxMessagesPerTrigger=5).min_messages_per_trigger == 5
    found = problem(minMessagesPerTrigger=6, maxMessagesPerTrigger=5)
    assert "'minMessagesPerTrigger' has the value 6, which is not allowed with maxMessagesPerTrigger=5" in found
    assert "Allowed: 1 to 5." in found
    assert "no effect with minMessagesPerTrigger=1" in problem(maxTriggerDelay="1m")
    others = problems({**MINIMAL, "maxTriggerDelay": "1m", "numPartitions": "0"})
    assert len(others) == 2
    assert "no effect with minMessagesPerTrigger=1" in others[1]
    assert "Use 'minMessagesPerTrigger' instead" in problem(minOffsetsPerTrigger="1")


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("queue", ""),
        ("queue", "a,,b"),
        ("queue", "a,a"),
        ("queue", "x" * 256),
        ("heartbeat", "-1"),
        ("heartbeat", "65536"),
        ("heartbeat", "1.5"),
        ("heartbeat", "१"),
        ("connectTimeout", "0"),
        ("connectTimeout", "nan"),
        ("connectTimeout", "soon"),
        ("retry.maxAttempts", "-1"),
        ("retry.maxDelay", "-1"),
        ("maxMessagesPerTrigger", "0"),
        ("numPartitions", "0"),
        ("transferPort", "65536"),
        ("transfer", "push"),
        ("timestampUnit", "us"),
        ("declare", "always"),
        ("deliveryGuarantee", "at-most-twice"),
        ("bind", "amq.topic"),
        ("bind", "/key"),
        ("bind", "amq.topic/a;"),
        ("bind", "amq.topic/" + "k" * 256),
        ("saslMechanisms", ""),
        ("saslMechanisms", "GSSAPI"),
        ("saslMechanisms", "PLAIN PLAIN"),
        ("selector", ""),
        ("exclusive", "1"),
        ("minMessagesPerTrigger", "0"),
        ("maxTriggerDelay", "36501d"),
        ("maxTriggerDelay", "999999999999d"),
        ("maxTriggerDelay", "0s"),
        ("consumerTimeout", "30"),
        ("consumerTimeout", "999ms"),
        ("maxTriggerDelay", "15 minutes"),
        ("maxTriggerDelay", "1.5s"),
        ("maxTriggerDelay", ""),
        ("columnNameOfCorruptRecord", ""),
    ],
)
def test_a_wrong_value_names_option_value_and_what_is_allowed(key: str, text: str) -> None:
    found = problem(**{key: text})
    assert repr(key) in found
    assert repr(text[:200]) in found
    assert "Allowed: " in found


def test_values() -> None:
    options = parse(
        queue="a, b",
        bind="amq.topic/ticks.#;amq.fanout/;amq.direct/x/y",
        declare="IFMISSING",
        mode="reject",
        exclusive=True,
        connectTimeout="2.5",
        maxMessagesPerTrigger=1000,
        transfer="PULL",
        transferHost="10.0.0.1",
        transferPort="4000",
        timestampUnit="MS",
        selector="symbol = 'A'",
        saslMechanisms="plain, scram-sha-256",
        username="u",
        password=SECRET,
    )
    assert options.queues == ("a", "b")
    assert options.bind == (("amq.topic", "ticks.#"), ("amq.fanout", ""), ("amq.direct", "x/y"))
    assert (options.declare, options.mode, options.transfer, options.timestamp_unit) == (
        "ifMissing",
        "REJECT",
        "pull",
        "ms",
    )
    assert options.exclusive is True
    assert options.connect_timeout == 2.5
    assert options.max_messages_per_trigger == 1000
    assert (options.transfer_host, options.transfer_port) == ("10.0.0.1", 4000)
    assert options.sasl_mechanisms == ("PLAIN", "SCRAM-SHA-256")
    assert options.in_clear == ("PLAIN", "SCRAM-SHA-256")
    assert options.connect_options().in_clear == options.in_clear


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"username": "u"}, "without 'password'"),
        ({"password": SECRET}, "without 'username'"),
        ({"passwordFile": "/x"}, "without 'username'"),
        ({"username": "u", "password": SECRET, "passwordFile": "/x"}, "both given"),
        ({"tls.caFile": "/x"}, "amqps://"),
        ({"tls.verifyHostname": "false"}, "amqps://"),
        ({"url": "amqps://h", "tls.keyFile": "/k"}, "without 'tls.certFile'"),
        ({"saslMechanisms": "PLAIN"}, "a list with ANONYMOUS"),
        ({"saslMechanisms": "ANONYMOUS", "username": "u", "password": SECRET}, "SCRAM-SHA-256"),
        ({"url": "amqps://h", "tls.certFile": "/c", "saslMechanisms": "ANONYMOUS"}, "a list with EXTERNAL"),
        ({"mode": "REJECT", "deliveryGuarantee": "at-most-once"}, "REJECT"),
        ({"spoolLocation": "file:///x"}, "no effect with deliveryGuarantee=at-least-once"),
    ],
)
def test_contradictions(given: dict[str, object], text: str) -> None:
    assert text in problem(**given)


def test_what_exactly_once_needs_is_told_at_once() -> None:
    found = problems({**MINIMAL, "deliveryGuarantee": "exactly-once", "mode": "REJECT", "heartbeat": "0"})
    assert len(found) == 4
    assert [name in " ".join(found) for name in ("consumerId", "spoolLocation", "heartbeat", "REJECT")] == [True] * 4
    complete = parse(deliveryGuarantee="exactly-once", consumerId="c", spoolLocation="file:///x/", adoptState="true")
    assert (complete.exactly_once, complete.adopt_state, complete.spool_location) == (True, True, "file:///x")
    assert not parse(consumerId="c").exactly_once


@pytest.mark.parametrize("value", ["yes", "1", ""])
def test_a_state_is_adopted_or_not(value: str) -> None:
    text = problem(deliveryGuarantee="exactly-once", consumerId="c", spoolLocation="/spool", adoptState=value)
    assert "'adoptState'" in text
    assert repr(value) in text
    assert "true or false" in text


@pytest.mark.parametrize("value", ["", "x" * 201, "ä" * 101, " a", "a\n", "a\tb"])
def test_an_identity_has_bounds(value: str) -> None:
    text = problem(deliveryGuarantee="exactly-once", spoolLocation="/spool", consumerId=value)
    assert "'consumerId'" in text
    assert "1 to 200 bytes" in text


@pytest.mark.parametrize("name", [option.name for option in (*CONNECTION, *SOURCE)])
def test_a_value_that_is_not_utf8_is_refused_and_not_shown(name: str) -> None:
    """As a password comes from the environment that is Latin-1 in a locale of UTF-8."""
    value = SECRET.encode() + b"\xe4"
    found = problems({**MINIMAL, name: value.decode("utf-8", "surrogateescape")})
    (text,) = (each for each in found if "UTF-8" in each)
    assert text.startswith(f"[AMQP_OPTION_INVALID] Option {name!r} has the value <redacted>")
    assert "Allowed: text with a valid encoding in UTF-8." in text


@pytest.mark.parametrize("name", ["passwordFile", "tls.caFile", "tls.certFile", "tls.keyFile", "spoolLocation"])
def test_a_path_with_a_nul_is_refused(name: str) -> None:
    found = problems({**MINIMAL, "url": "amqps://h", name: "/a\0b"})
    (text,) = (each for each in found if "Allowed" in each)
    assert text.startswith(f"[AMQP_OPTION_INVALID] Option {name!r} has the value '/a\\x00b'")
    assert "path" in text


@pytest.mark.parametrize("value", ["", "spool", "./spool", "spool:x"])
def test_a_spool_location_is_an_absolute_path_or_a_uri(value: str) -> None:
    assert "s3://bucket/spool" in problem(deliveryGuarantee="exactly-once", consumerId="c", spoolLocation=value)


@pytest.mark.parametrize(
    "value",
    [
        f"s3://key:{SECRET}@bucket/spool",
        f"s3://key:{SECRET[:3]}/{SECRET}@bucket/spool",
        f"s3://bucket/spool?secret_key={SECRET}",
        f"s3://bucket/spool?region=x&access_key={SECRET}",
        f"abfs://account.dfs.core.windows.net/spool?se=2026&sig={SECRET}",
        f"abfs://container@account.dfs.core.windows.net/spool?client_id=x&client_secret={SECRET}",
        f"abfs://container:{SECRET}@account.dfs.core.windows.net/spool",
        f"abfs://:{SECRET}@account.dfs.core.windows.net/spool",
        f"hdfs://user:{SECRET}@host/spool",
        f"hdfs://user:{SECRET[:3]}/{SECRET}@host/spool",
        f"s3://{SECRET}@bucket/spool",
    ],
)
def test_a_spool_location_holds_no_secret(value: str) -> None:
    text = problem(deliveryGuarantee="exactly-once", consumerId="c", spoolLocation=value)
    assert "credentials in it would be logged" in text
    assert SECRET not in text


@pytest.mark.parametrize(
    "value",
    [
        "/",
        "/spool",
        "s3://b/p?endpoint_override=h%3A1&scheme=http",
        "abfs://container@account.dfs.core.windows.net/spool",
        "ABFSS://container@account.dfs.core.windows.net/spool",
        "hdfs://user@host:8020/spool",
        "hdfs://user@host/spool",
    ],
)
def test_other_spool_locations_are_kept(value: str) -> None:
    assert parse(deliveryGuarantee="exactly-once", consumerId="c", spoolLocation=value).spool_location == value


@pytest.mark.parametrize("option", ["spoolLocation", "queryCheckpoint"])
@pytest.mark.parametrize(
    ("value", "instead"),
    [
        ("s3a://bucket/spool", "does not know s3a: write s3://bucket"),
        ("S3N://bucket/spool", "does not know s3n: write s3://bucket"),
        ("dbfs:/spool", "does not know dbfs: write the path where it is mounted, such as /dbfs"),
        (
            "wasbs://container@account.blob.core.windows.net/spool",
            "does not know wasbs: write abfss://container@account",
        ),
    ],
)
def test_a_location_that_only_spark_can_open_says_what_to_write(option: str, value: str, instead: str) -> None:
    (text,) = (each for each in problems({**MINIMAL, option: value}) if f"{option!r} has the value" in each)
    assert repr(value) in text
    assert instead in text


@pytest.mark.parametrize("url", [f"amqp://u:{SECRET}@h/v", f"amqp://h/v?password={SECRET}"])
def test_credentials_in_the_url_are_refused_and_not_repeated(url: str) -> None:
    assert "URL" in problem(url=url)


def test_no_secret_is_shown_or_sent_to_executors() -> None:
    options = parse(username="u", password=SECRET)
    assert SECRET not in repr(options)
    assert SECRET not in repr(options.connect_options())
    assert options.connect_options().password == SECRET
    shipped = pickle.dumps(options.for_executors())
    assert SECRET.encode() not in shipped
    assert pickle.loads(pickle.dumps(options)) == options
    assert pickle.loads(shipped).queues == options.queues
    by_file = parse(username="u", passwordFile="/run/secrets/broker")
    assert by_file.connect_options().password_file == "/run/secrets/broker"
    assert by_file.for_executors().password_file is None


def test_connect_options_carry_everything() -> None:
    given = parse(
        url="amqps://a:1,b/v", tls__caFile="/ca", tls__certFile="/cert", tls__keyFile="/key", tls__verifyHostname=False,
        heartbeat="5", connectTimeout="3", consumerId="me",
    ).connect_options()  # fmt: skip
    assert given.hosts == (("a", 1), ("b", 5671))
    assert (given.virtual_host, given.tls, given.tls_verify_hostname) == ("v", True, False)
    assert (given.tls_ca_file, given.tls_cert_file, given.tls_key_file) == ("/ca", "/cert", "/key")
    assert (given.heartbeat, given.connect_timeout) == (5, 3.0)
    assert "me" in given.client_name


def test_option_errors_pickle_with_all_problems() -> None:
    error = OptionError(["one", "two"])
    again = pickle.loads(pickle.dumps(error))
    assert (again.problems, str(again)) == (error.problems, str(error))
    assert isinstance(again, ValueError)


def test_validate_gives_back_what_the_options_mean() -> None:
    assert validate(MINIMAL) == parse()
    with pytest.raises(OptionError, match="'url' is required"):
        validate({"queue": "q"})


@pytest.mark.parametrize("host", [".example", "x" * 64, "a\0b", "", "[", "[::1", "::1]", "[]", "[name]", "[10.0.0.1]"])
def test_a_transfer_host_that_can_be_none(host: str) -> None:
    (found,) = problems({**MINIMAL, "transferHost": host})
    assert "'transferHost'" in found
    assert "host name or address" in found


@pytest.mark.parametrize("host", ["driver.example", "10.0.0.1", "::1", "fe80::1", "b\u00fccher.example"])
def test_a_transfer_host(host: str) -> None:
    assert SourceOptions.parse(MINIMAL | {"transferHost": host}).transfer_host == host


def test_a_transfer_host_of_ipv6_may_stand_in_brackets() -> None:
    assert SourceOptions.parse(MINIMAL | {"transferHost": "[fd00::2]"}).transfer_host == "fd00::2"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x-max-length=10", {"x-max-length": 10}),
        ("a=-1; b = True;c=false;d=1.5;e=;f=x=y", {"a": -1, "b": True, "c": False, "d": "1.5", "e": "", "f": "x=y"}),
        ('{"a": {"b": [1, 1.5, "x", true]}}', {"a": {"b": [1, 1.5, "x", True]}}),
        ("{}", {}),
    ],
)
def test_queue_arguments(text: str, expected: dict[str, object]) -> None:
    assert dict(parse(declare="ifMissing", queueArguments=text).queue_arguments) == expected


@pytest.mark.parametrize(
    "text",
    [
        "", "a", "=1", "a=1;", "{", '{"a": null}', '{"a": [null]}', '{"": 1}', '{"a": 9223372036854775808}', "[1]",
        pytest.param('{"a": ' + 5000 * "[" + 5000 * "]" + "}", id="deep"),
        pytest.param('{"a": ' + 400 * "[" + "null" + 400 * "]" + "}", id="less deep"),
    ],
)  # fmt: skip
def test_bad_queue_arguments_are_refused(text: str) -> None:
    (problem,) = problems({**MINIMAL, "declare": "ifMissing", "queueArguments": text})
    assert "'queueArguments'" in problem
    assert "JSON object" in problem


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"queueType": "quorum"}, "'queueType' has no effect with declare=never"),
        ({"queueArguments": "a=1"}, "'queueArguments' has no effect with declare=never"),
        ({"declare": "ifMissing", "queueType": "quorum", "queueArguments": "x-queue-type=classic"}, "with queueType"),
        ({"declare": "ifMissing", "queueType": "super"}, "Allowed: classic, quorum, stream"),
        ({"consumerTimeout": "1h", "deliveryGuarantee": "at-most-once"}, "'consumerTimeout' has no effect"),
        ({"consumerPriority": "high"}, "'consumerPriority' has the value 'high'"),
        ({"prefetch": "10"}, "Use 'bufferBytes' instead"),
    ],
)
def test_options_of_queues_that_do_not_fit_are_refused(options: dict[str, str], named: str) -> None:
    (problem,) = problems({**MINIMAL, **options})
    assert named in problem
