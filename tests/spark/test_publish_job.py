"""The command line of jobs/publish.py: without a broker; the columns that it makes, in Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from amqp_spark.options import CONNECTION, SINK
from tests.spark.job_support import SECRET, help_of, without_spark
from tests.support.frames import assert_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def publish(monkeypatch: pytest.MonkeyPatch) -> Any:
    return without_spark("publish", monkeypatch)


GOOD = ["--url", "amqp://localhost/v", "--input", "in"]
STREAM = [*GOOD, "--stream", "--checkpoint", "ck", "--schema", "body STRING"]


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        ([], ["--input", "--table", "--sql"]),
        (["--format", "csv"], ["--input"]),
        (["--input", "in"], ["'url' is required"]),
        ([*GOOD, "--table", "t"], ["--table excludes --input"]),
        (["--table", "t", "--schema", "body STRING"], ["--table excludes"]),
        (["--sql", "select 1", "--source-option", "header=true"], ["--source-option"]),
        ([*GOOD, "--checkpoint", "ck"], ["--checkpoint is for streams"]),
        ([*GOOD, "--available-now"], ["--available-now is for streams"]),
        ([*GOOD, "--processing-time", "1 second"], ["--processing-time is for streams"]),
        ([*GOOD, "--stream"], ["--checkpoint"]),
        ([*GOOD, "--stream", "--checkpoint", "ck"], ["--schema"]),
        ([*STREAM, "--input", "more"], ["one --input"]),
        (["--stream", "--checkpoint", "ck", "--sql", "select 1"], ["--input PATH or --table NAME"]),
        (
            [*GOOD, "--column", "body"],
            ["A value of --column is not of the form NAME=EXPRESSION, or '*'. Write --column NAME=EXPRESSION, or '*'"],
        ),
        ([*GOOD, "--column", "body=a", "--column", "body=b"], ["--column body=... is given twice"]),
        (
            [*GOOD, "--header", "=a"],
            ["A value of --header is not of the form NAME=EXPRESSION. Write --header NAME=EXPRESSION"],
        ),
        ([*GOOD, "--header", "a=a", "--column", "Application_Headers=b"], ["--header and --column"]),
        ([*GOOD, "--routing-key", "k", "--option", "routingKey=j"], ["routingKey=", "repeats another argument"]),
        ([*GOOD, "--option", "queue=q"], ["belongs to the source"]),
        ([*GOOD, "--option", "exchnge=e", "--option", "priority=256"], ["Use 'exchange' instead", "from 0 to 255"]),
        ([*GOOD, "--exchange", "e" * 256], ["at most 255 bytes"]),
        (
            [*GOOD, "--option", "deliveryGuarantee=exactly-once"],
            ["'transactionalId' is required", "'batchId' is required by a batch write"],
        ),
        ([*GOOD, "--option", f"password={SECRET}"], ["--password-file", "AMQP_PASSWORD"]),
        ([*GOOD, "--option", f"password:{SECRET}"], ["A value of --option is not of the form key=value"]),
        ([*GOOD, "--option", f"amqp://u:{SECRET}@h?x=y"], ["A value of --option is not of the form key=value"]),
        ([*GOOD, "--url", f"amqp://u:{SECRET}@localhost/v"], ["credentials"]),
        ([*GOOD, "--username", "u", "--password-file", "/no/such/file"], ["'/no/such/file' cannot be read"]),
        ([*GOOD, "--input", ""], ["--input is empty"]),
        ([*GOOD, "--source-option", "header"], ["A value of --source-option is not of the form key=value"]),
        (
            [*STREAM, "--processing-time", "soon"],
            ["--processing-time 'soon' is no time. Write for instance '10 seconds'"],
        ),
        ([*GOOD, "--conf", "x"], ["A value of --conf is not of the form key=value. Write --conf key=value"]),
    ],
)
def test_a_wrong_command_line_ends_with_2_before_spark_starts(
    publish: Any, capsys: pytest.CaptureFixture[str], arguments: list[str], texts: list[str]
) -> None:
    assert publish.main(arguments) == 2
    shown = capsys.readouterr()
    for text in texts:
        assert text in shown.err
    assert SECRET not in shown.err + shown.out


def test_help_lists_what_can_be_given(publish: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shown = help_of(publish, capsys)
    assert "exit codes: 0 done" in shown
    for option in (*CONNECTION, *SINK):
        assert (f"  {option.name} " in shown) is not option.secret


def test_exchange_and_key_are_options_of_the_sink(publish: Any) -> None:
    arguments = publish.parser().parse_args([*GOOD, "--exchange", "", "--routing-key", "k", "--option", "ttl=5"])
    assert publish.sink_options(arguments) == {
        "url": "amqp://localhost/v", "exchange": "", "routingKey": "k", "ttl": "5",
    }  # fmt: skip


MAPPINGS = [
    ([], "body STRING, priority INT", ("a", 1)),
    (["--column", "body=upper(body)"], "body STRING", ("A",)),
    (["--header", "n=priority"], "body STRING, priority INT, application_headers STRUCT<n: INT>", ("a", 1, (1,))),
    (["--column", "*", "--column", "body=upper(body)"], "body STRING, priority INT", ("A", 1)),
    (
        ["--column", "*", "--column", "routing_key='x=y'"],
        "body STRING, priority INT, routing_key STRING",
        ("a", 1, "x=y"),
    ),
    (
        ["--column", "body=body", "--header", "n=priority + 1", "--header", "x y=NULL", "--header", "password=body"],
        "body STRING, application_headers STRUCT<n: INT, `x y`: VOID, password: STRING>",
        ("a", (2, None, "a")),
    ),
]


@pytest.mark.spark
@pytest.mark.parametrize(("arguments", "schema", "row"), MAPPINGS)
def test_columns_are_sql_expressions(
    publish: Any, spark: SparkSession, arguments: list[str], schema: str, row: tuple[object, ...]
) -> None:
    rows = spark.createDataFrame([("a", 1)], "body STRING, priority INT")
    made = publish.messages(rows, publish.parser().parse_args([*GOOD, *arguments]))
    assert_rows(made, [row], schema)
