"""``stableMessageId``: ids that are made of the place of a row."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import types as t

from amqp_spark.arrow.encode import FrameFormat, MessagePlan, TaskId
from amqp_spark.arrow.rows.message_ids import NAMESPACE
from amqp_spark.data_source import AmqpDataSource
from amqp_spark.errors import OptionError, SchemaError
from tests.spark.message_support import OCTETS, TEXT, blocks_of, fields, received, sink_options, to_batch
from tests.spark.publish_support import decoded, encoded

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = fields(body=OCTETS)
ROWS: list[dict[str, Any]] = [{"body": b""}] * 3
STABLE = sink_options(stableMessageId="true")
TASK = TaskId(query_id="6b1d0c3e-0000-4000-8000-000000000001", batch_id=12, partition=3)
TEXTS = [f"{TASK.query_id}-12-3-{row}" for row in (40, 41, 42)]


def ids(place: TaskId = TASK, *, first_row: int = 40, **options: object) -> Iterator[str | None]:
    blocks = encoded(SCHEMA, ROWS, sink_options(stableMessageId="true", **options), place=place, first_row=first_row)
    return (message.properties.message_id for message in decoded(blocks))


def test_the_id_is_query_batch_partition_and_row() -> None:
    assert list(ids()) == TEXTS
    assert list(ids()) == TEXTS  # the same when the task is tried again


def test_a_transactional_id_takes_the_place_of_the_query_id() -> None:
    assert next(ids(transactionalId="nightly")) == "nightly-12-3-40"
    alone = TaskId(query_id=None, batch_id=7, partition=0)
    assert list(ids(alone, first_row=0, transactionalId="nightly")) == [f"nightly-7-0-{row}" for row in range(3)]


def test_the_longest_id_fits_a_short_text() -> None:
    place = TaskId(query_id=None, batch_id=2**63 - 1, partition=2**31 - 1)
    (first, *_) = ids(place, first_row=2**62, transactionalId="t" * 200)
    assert len(first or "") <= 255


def test_with_0_10_it_is_the_uuid_of_that_text() -> None:
    found = received(blocks_of(SCHEMA, to_batch(SCHEMA, ROWS), STABLE, place=TASK, first_row=40))
    assert [message.message.message_id for message in found] == [uuid.uuid5(NAMESPACE, text) for text in TEXTS]
    assert uuid.uuid5(uuid.NAMESPACE_URL, "amqp-spark stableMessageId") == NAMESPACE


def test_a_column_message_id_is_refused() -> None:
    schema = fields(body=OCTETS, Message_Id=TEXT)
    with pytest.raises(SchemaError, match=r"Column 'Message_Id' and option 'stableMessageId' both set the same"):
        MessagePlan.build(schema, STABLE)


@pytest.mark.parametrize("place", [TaskId(None, 1, 0), TaskId("q", None, 0)])
def test_a_task_that_has_no_query_or_batch_names_the_missing_option(place: TaskId) -> None:
    plan = MessagePlan.build(SCHEMA, STABLE)
    missing = "transactionalId" if place.query_id is None else "batchId"
    with pytest.raises(OptionError, match=f"'{missing}' is required by stableMessageId=true outside"):
        plan.encoder(FrameFormat(protocol="0-9-1", max_frame_size=4096), place)


def test_a_batch_write_needs_an_identity() -> None:
    options = {"url": "amqp://localhost", "routingKey": "q", "stableMessageId": "true"}
    schema = t.StructType([t.StructField("body", t.StringType())])
    with pytest.raises(OptionError) as caught:
        AmqpDataSource(options).writer(schema, overwrite=False)
    assert len(caught.value.problems) == 2
    whole = options | {"transactionalId": "nightly", "batchId": "7"}
    AmqpDataSource(whole).writer(schema, overwrite=False)
    AmqpDataSource(options).streamWriter(schema, overwrite=False)


def test_a_transactional_id_has_an_effect_with_it() -> None:
    with pytest.raises(OptionError, match=r"set deliveryGuarantee=exactly-once or stableMessageId=true"):
        sink_options(transactionalId="t")
    assert sink_options(transactionalId="t", stableMessageId="true").transactional_id == "t"
