"""Offsets as the checkpoint holds them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_spark.errors import OffsetError
from amqp_spark.offsets import QueueOffset, dump_offsets, initial_offsets, parse_offsets


def test_the_initial_offset_is_a_constant_without_epoch() -> None:
    text = '{"a": {"position": 0, "version": 1}, "b": {"position": 0, "version": 1}}'
    assert json.dumps(dump_offsets(initial_offsets(["b", "a"]))) == text
    assert json.dumps(dump_offsets(initial_offsets(["a", "b"]))) == text


def test_the_format_is_the_documented_one() -> None:
    text = '{"a": {"epoch": 7, "position": 2, "version": 1}, "q": {"epoch": "c0ffee", "position": 12, "version": 1}}'
    assert json.dumps(dump_offsets({"q": QueueOffset(12, "c0ffee"), "a": QueueOffset(2, 7)})) == text


def test_an_offset_with_a_protocol_is_of_version_2() -> None:
    text = '{"q": {"epoch": 7, "position": 2, "protocol": "0-9-1", "version": 2}}'
    assert json.dumps(dump_offsets({"q": QueueOffset(2, 7, "0-9-1")})) == text


@given(
    st.dictionaries(
        st.text(min_size=1),
        st.builds(
            QueueOffset,
            st.integers(0, 2**63 - 1),
            st.text(min_size=1) | st.integers(),
            st.none() | st.sampled_from(["0-10", "0-9-1", "0-9"]),
        )
        | st.just(QueueOffset(0)),
    )
)
def test_what_was_dumped_is_parsed(offsets: dict[str, QueueOffset]) -> None:
    assert parse_offsets(json.loads(json.dumps(dump_offsets(offsets))), list(offsets)) == offsets


GOOD = {"epoch": "e", "position": 1, "version": 1}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "this source did not write"),
        (5, "this source did not write"),
        ("{}", "this source did not write"),
        ([], "this source did not write"),
        ({"q": 5}, "this source did not write"),
        ({"q": {}}, "this source did not write"),
        ({"q": {"epoch": "e", "position": 1}}, "this source did not write"),
        ({"topic": {"0": 17}}, "this source did not write"),
        ({"q": GOOD | {"version": 3}}, "newer amqp_spark"),
        ({"q": GOOD | {"protocol": "0-10"}}, "version 1 has no keys protocol"),
        ({"q": GOOD | {"version": 2}}, "protocol None"),
        ({"q": GOOD | {"protocol": "", "version": 2}}, "protocol ''"),
        ({"q": GOOD | {"protocol": 10, "version": 2}}, "protocol 10"),
        ({"q": {"position": 0, "protocol": "0-10", "version": 2}}, "no epoch"),
        ({"q": GOOD | {"version": 0}}, "version 0"),
        ({"q": GOOD | {"version": "1"}}, "version '1'"),
        ({"q": GOOD | {"version": True}}, "version True"),
        ({"q": GOOD | {"position": -1}}, "position -1"),
        ({"q": GOOD | {"position": 2**63}}, "position"),
        ({"q": GOOD | {"position": 1.0}}, "position 1.0"),
        ({"q": GOOD | {"position": "1"}}, "position '1'"),
        ({"q": GOOD | {"position": True}}, "position True"),
        ({"q": {"position": 1, "version": 1}}, "no epoch"),
        ({"q": GOOD | {"epoch": None}}, "no epoch"),
        ({"q": GOOD | {"epoch": ""}}, "epoch ''"),
        ({"q": GOOD | {"epoch": 1.5}}, "epoch 1.5"),
        ({"q": GOOD | {"epoch": True}}, "epoch True"),
        ({"q": GOOD | {"extra": 1}}, "extra"),
        ({"other": GOOD}, "'other', and the query now reads 'q'"),
        ({"q": GOOD, "other": GOOD}, "'other', 'q', and the query now reads 'q'"),
        ({}, "no queue, and the query now reads 'q'"),
    ],
)
def test_what_is_not_ours_is_refused_with_what_is_wrong(value: object, text: str) -> None:
    with pytest.raises(OffsetError, match=text):
        parse_offsets(value, ["q"])


def test_a_huge_foreign_offset_is_not_shown_whole() -> None:
    with pytest.raises(OffsetError) as caught:
        parse_offsets({"q": "x" * 100_000}, ["q"])
    assert len(str(caught.value)) < 400
