"""The data source as Spark makes it: options are checked at the first call, and what it cannot do is said."""

from __future__ import annotations

import pickle

import pytest
from pyspark.errors import ParseException
from pyspark.sql.types import StructType

from amqp_spark import AmqpDataSource, validate
from amqp_spark.arrow.decode import DEFAULT_SCHEMA
from amqp_spark.errors import OptionError, SchemaError

OPTIONS = {"url": "amqp://localhost", "queue": "q", "username": "u", "password": "s3cret"}
BODY = StructType().add("body", "string")


def test_without_a_schema_wrong_options_are_told_by_load() -> None:
    with pytest.raises(OptionError) as caught:
        AmqpDataSource({"queu": "q", "heartbeat": "never"}).schema()
    assert [name in str(caught.value) for name in ("'url'", "'queu'", "'queue'", "'heartbeat'")] == [True] * 4
    assert AmqpDataSource(OPTIONS).schema() == DEFAULT_SCHEMA


@pytest.mark.parametrize("make", ["reader", "streamReader"])
def test_with_a_schema_options_and_columns_are_told_together(make: str) -> None:
    schema = StructType().add("body", "integer").add("topic", "string")
    with pytest.raises(OptionError) as caught:
        getattr(AmqpDataSource(OPTIONS | {"mode": "maybe"}), make)(schema)
    problems = caught.value.problems
    assert len(problems) == 3
    assert ["Option 'mode'" in problems[0], "body" in problems[1], "topic" in problems[2]] == [True] * 3
    with pytest.raises(SchemaError):
        getattr(AmqpDataSource(OPTIONS), make)(schema)


def test_a_batch_read_cannot_reject() -> None:
    with pytest.raises(OptionError, match="a batch read, which browses and cannot reject"):
        AmqpDataSource(OPTIONS | {"mode": "reject"}).reader(BODY)
    AmqpDataSource(OPTIONS | {"mode": "reject"}).streamReader(BODY)


def test_what_only_a_batch_read_or_a_stream_refuses_is_told_with_the_other_problems() -> None:
    wrong = OPTIONS | {"heartbeat": "never"}
    with pytest.raises(OptionError) as batch:
        AmqpDataSource(wrong | {"mode": "REJECT"}).reader(BODY)
    with pytest.raises(OptionError) as stream:
        AmqpDataSource(wrong | {"queueType": "stream", "endingOffsets": "latest"}).streamReader(BODY)
    for caught, name in ((batch, "'mode'"), (stream, "'endingOffsets'")):
        assert [any(each in text for text in caught.value.problems) for each in ("'heartbeat'", name)] == [True] * 2
        assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({"deliveryGuarantee": "exactly-once"}, ["transactionalId", "batchId"]),
        ({"deliveryGuarantee": "exactly-once", "stableMessageId": "true"}, ["transactionalId", "batchId"]),
        ({"stableMessageId": "true"}, ["transactionalId", "batchId"]),
        ({"stableMessageId": "true", "transactionalId": "w"}, ["batchId"]),
    ],
)
def test_what_a_batch_write_needs_is_told_with_the_other_problems(options: dict[str, str], missing: list[str]) -> None:
    given = {key: value for key, value in OPTIONS.items() if key != "queue"} | options
    with pytest.raises(OptionError) as caught:
        AmqpDataSource(given | {"heartbeat": "never"}).writer(BODY, overwrite=False)
    named = [name for text in caught.value.problems for name in ("transactionalId", "batchId") if f"{name!r}" in text]
    assert named == missing
    assert any("'heartbeat'" in text for text in caught.value.problems)
    assert any("AMQP_DESTINATION_MISSING" in text for text in caught.value.problems)
    with pytest.raises(OptionError) as stream:
        AmqpDataSource(given | {"heartbeat": "never"}).streamWriter(BODY, overwrite=False)
    assert not any("'batchId'" in text for text in stream.value.problems)


def test_with_wrong_options_the_schema_has_no_problem_that_the_right_ones_do_not_cause() -> None:
    wrong = OPTIONS | {"heartbeat": "never", "Mode": "permissive"}
    schema = StructType().add("body", "string").add("bad", "string")
    with pytest.raises(OptionError) as caught:
        validate(wrong | {"columnNameOfCorruptRecord": "bad"}, schema)
    assert [("'heartbeat'" in text) for text in caught.value.problems] == [True]
    with pytest.raises(OptionError) as caught:
        validate(wrong, StructType().add("body", "string", nullable=False))
    assert [text.partition("]")[0] for text in caught.value.problems] == [
        "[AMQP_OPTION_INVALID",
        "[AMQP_COLUMN_NOT_NULL",
    ]


def test_a_streaming_query_has_no_end() -> None:
    options = OPTIONS | {"queueType": "stream", "endingoffsets": "100"}
    with pytest.raises(OptionError, match=r"'endingOffsets' has the value '100'.*streaming query.*spark\.read"):
        AmqpDataSource(options).streamReader(BODY)
    AmqpDataSource(options).reader(BODY)


@pytest.mark.parametrize("make", ["reader", "streamReader"])
def test_the_source_leaves_the_login_behind_once_its_reader_is_made(make: str) -> None:
    source = AmqpDataSource(OPTIONS)
    assert b"s3cret" in pickle.dumps(source)  # Spark sends it to where the reader is made
    reader = getattr(source, make)(BODY)
    assert b"s3cret" not in pickle.dumps(source)
    assert "s3cret" not in repr(source) + str(source) + repr(reader) + str(reader)


def test_a_reader_that_goes_to_executors_has_no_login() -> None:
    assert b"s3cret" not in pickle.dumps(AmqpDataSource(OPTIONS).streamReader(BODY))


@pytest.mark.parametrize("make", ["reader", "streamReader"])
def test_executors_that_read_streams_log_in_and_a_password_file_is_read_there(make: str) -> None:
    options = OPTIONS | {"queueType": "stream"}
    source = AmqpDataSource(options)
    assert b"s3cret" in pickle.dumps(getattr(source, make)(BODY)), "as docs/operations.md says"
    assert b"s3cret" not in pickle.dumps(source)
    del options["password"]
    reader = getattr(AmqpDataSource(options | {"passwordFile": "/run/secrets/amqp"}), make)(BODY)
    assert b"/run/secrets/amqp" in pickle.dumps(reader)


def test_a_schema_that_is_no_ddl_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_text: str) -> StructType:
        raise ParseException(message="[PARSE_SYNTAX_ERROR] at or near 'STRIN'\n\n== SQL ==\nbody STRIN,")

    monkeypatch.setattr(StructType, "fromDDL", refuse)
    with pytest.raises(SchemaError, match=r"'body STRIN,' is no DDL: .* at or near 'STRIN'\. Write"):
        validate(OPTIONS, "body STRIN,")
    with pytest.raises(OptionError) as caught:
        validate({}, "body STRIN,")
    assert len(caught.value.problems) == 3
