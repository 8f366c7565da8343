"""Offsets of streams in the checkpoint, positions as options give them, and how a batch is shared out."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_spark.datasource.log.offsets import LogOffset, dump_log_offsets, parse_log_offsets
from amqp_spark.datasource.log.pace import Pace
from amqp_spark.datasource.log.planner import LEAST_RANGE, LogRange, cut, shares
from amqp_spark.errors import OffsetError, OptionError
from amqp_spark.offsets import parse_offsets
from amqp_spark.options import SourceOptions
from amqp_spark.options.log_positions import Edge, Since, position_of

OFFSETS = st.dictionaries(
    st.text(min_size=1, max_size=5),
    st.builds(LogOffset, st.integers(0, 2**63 - 1), st.none() | st.sampled_from(["00ff", "a1" * 16])),
    min_size=1,
)


@given(OFFSETS)
def test_offsets_are_read_back_and_have_one_text(offsets: dict[str, LogOffset]) -> None:
    text = json.dumps(dump_log_offsets(offsets))
    assert parse_log_offsets(json.loads(text), [*offsets, "joins later"]) == offsets
    assert json.dumps(dump_log_offsets(dict(reversed(offsets.items())))) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x", "the query.*it is 'x'"),
        ({"s": {"offset": 1, "version": 2}}, r"AMQP_OFFSET_TOO_NEW.*version 2"),
        ({"s": {"offset": -1, "version": 1}}, "offset -1, which is no integer"),
        ({"s": {"offset": True, "version": 1}}, "offset True"),
        ({"s": {"offset": 1}}, "stream 's'"),
        ({"s": {"offset": 1, "version": 1, "more": 1}}, "stream 's'"),
        ({"s": {"offset": 1, "version": 1, "digest": 5}}, "digest 5"),
        ({"s": {"offset": 1, "version": "1"}}, "version '1'"),
        ({"s": {"epoch": 5, "position": 1, "version": 1}}, r"AMQP_OFFSET_OF_QUEUE.*queue 's'.*new checkpoint"),
        ({"gone": {"offset": 1, "version": 1}}, r"AMQP_OFFSET_LOGS_CHANGED.*'gone'.*'s'"),
    ],
)
def test_offsets_of_another_kind_are_refused(value: object, text: str) -> None:
    with pytest.raises(OffsetError, match=text):
        parse_log_offsets(value, ["s"])


def test_a_query_that_reads_a_queue_refuses_offsets_of_a_stream() -> None:
    with pytest.raises(OffsetError, match=r"AMQP_OFFSET_OF_LOG.*'s'.*queueType=stream"):
        parse_offsets(dump_log_offsets({"s": LogOffset(5)}), ["s"])


def options(**given_options: Any) -> SourceOptions:
    return SourceOptions.parse({"url": "amqp://h", "queue": "a,b", "queueType": "stream"} | given_options)


@pytest.mark.parametrize(
    ("text", "a", "b"),
    [
        ("earliest", Edge.EARLIEST, Edge.EARLIEST),
        ("Latest", Edge.LATEST, Edge.LATEST),
        ("12", 12, 12),
        ("2026-11-24T09:30:00Z", Since(1_795_512_600), Since(1_795_512_600)),
        ("2026-11-24T10:30:00+01:00", Since(1_795_512_600), Since(1_795_512_600)),
        ("1953-01-01T00:00:00Z", Since(0), Since(0)),  # no stream has a message from before
        ('{"a": 5}', 5, Edge.LATEST),
        ('{"a": -2, "b": "-1"}', Edge.EARLIEST, Edge.LATEST),
        ('{"a": "earliest", "b": "2026-11-24 09:30:00"}', Edge.EARLIEST, Since(1_795_512_600)),
    ],
)
def test_positions_are_given_for_all_streams_or_for_each(text: str, a: object, b: object) -> None:
    found = options(startingOffsets=text).starting_offsets
    assert (position_of(found, "a", Edge.LATEST), position_of(found, "b", Edge.LATEST)) == (a, b)


@pytest.mark.parametrize("text", ["", "first", "-3", "1.5", "{}", '{"a": true}', '{"a": null}', "[1]", "{", str(2**63)])
def test_other_positions_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"'startingOffsets' has the value.*Allowed: earliest, latest, an offset"):
        options(startingOffsets=text)


@pytest.mark.parametrize(
    ("given_options", "text"),
    [
        ({"queueType": "quorum", "declare": "ifMissing", "startingOffsets": "5"}, "'startingOffsets' has no effect"),
        ({"queueType": "classic", "declare": "ifMissing", "failOnDataLoss": "false"}, "'failOnDataLoss' has no effect"),
        ({"deliveryGuarantee": "at-most-once"}, "at-most-once.*queueType=stream.*Allowed: at-least-once, exactly-once"),
        ({"mode": "REJECT"}, "REJECT.*queueType=stream.*Allowed: FAILFAST, PERMISSIVE"),
        ({"exclusive": "true"}, "'exclusive' has no effect with queueType=stream"),
        ({"consumerPriority": "1"}, "'consumerPriority' has no effect"),
        ({"bufferBytes": "100m"}, "'bufferBytes' has no effect"),
        ({"spoolLocation": "/x", "deliveryGuarantee": "exactly-once"}, "'spoolLocation' has no effect"),
        ({"startingOffsets": '{"c": 1}'}, "'startingOffsets' has the value 'c'.*names of streams"),
        ({"queueArguments": "x-max-age=1D"}, "'queueArguments' has no effect.*declare=ifMissing"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_with_streams_are_refused(given_options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        options(**given_options)


def test_exactly_once_of_streams_needs_no_spool() -> None:
    assert not options(deliveryGuarantee="exactly-once").exactly_once


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 1000), min_size=1), st.integers(1, 500), st.integers(0, 50))
def test_shares_are_bounded_and_nothing_starves(waiting: dict[str, int], most: int, turn: int) -> None:
    found = shares(waiting, most, turn)
    assert all(0 < count <= waiting[log] for log, count in found.items())
    assert sum(found.values()) <= most
    if sum(waiting.values()) <= most:
        assert found == {log: count for log, count in waiting.items() if count}
    elif any(waiting.values()):
        logs = [log for log, count in waiting.items() if count]
        assert len(found) == min(most, len(logs))
        served = set().union(*(shares(waiting, most, turn + more) for more in range(len(logs))))
        assert served == set(logs)


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(1, 20))
def test_ranges_are_cut_without_a_gap(begin: int, messages: int, pieces: int) -> None:
    found = cut(LogRange("s", begin, begin + messages), pieces)
    assert (found[0].begin, found[-1].end) == (begin, begin + messages)
    assert all(one.end == two.begin for one, two in pairwise(found))
    assert len(found) <= pieces
    assert len(found) == 1 or min(each.messages for each in found) >= LEAST_RANGE


def test_rates_and_lags_follow_the_batches() -> None:
    now = 0.0
    pace = Pace(lambda: now)
    assert (pace.rates(), pace.lag("a", 5)) == ({}, 0), "where it begins is not known"
    pace.begun({"a": 3})
    assert pace.lag("a", 5) == 2
    for seconds, end in ((0.0, 100), (1.0, 300), (2.0, 500)):
        now = seconds
        pace.planned({"a": end, "b": 7})
    assert pace.rates() == {"a": 200.0, "b": 0.0}
    assert (pace.lag("a", 650), pace.lag("b", 7)) == (150, 0)
    now = 60.0
    assert pace.rates()["a"] < 10, "nothing was read for long"
    pace.planned({"a": 600, "b": 8})
    pace.planned({"a": 700, "b": 9})
    assert pace.rates()["b"] < 1
