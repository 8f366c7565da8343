"""The proof of the demonstration finds what is lost, doubled or changed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from amqp_spark.demo.checks import check_rows, check_summaries
from amqp_spark.demo.steps import Published
from amqp_spark.demo.ticks import ticks

if TYPE_CHECKING:
    from collections.abc import Callable

COUNT = 40


class Received(NamedTuple):
    body: bytes
    headers: dict[str, Any]
    routing_key: str


def rows() -> list[dict[str, Any]]:
    return [
        {
            "message_id": str(tick.message_id),
            "routing_key": tick.routing_key,
            "body": tick.body.decode(),
            "application_headers": dict(tick.headers),
        }
        for tick in ticks(COUNT, seed=1)
    ]


def published() -> Published:
    return Published(COUNT, sum(tick.qty for tick in ticks(COUNT, seed=1)))


def failed(results: dict[str, bool]) -> list[str]:
    return [text for text, holds in results.items() if not holds]


def doubled(found: list[dict[str, Any]]) -> None:
    found.append(found[0])


def replaced(found: list[dict[str, Any]]) -> None:
    found[1] = found[0]


def of_another_symbol(found: list[dict[str, Any]]) -> None:
    found[0]["routing_key"] = "ticks.NONE"


def with_another_body(found: list[dict[str, Any]]) -> None:
    found[0]["body"] = found[1]["body"]


@pytest.mark.parametrize(
    ("change", "checks"),
    [
        (lambda found: None, 0),
        (lambda found: found.pop(), 3),  # number, ids, sum
        (doubled, 4),  # message ids, too
        (replaced, 3),  # the number is right
        (of_another_symbol, 1),
        (with_another_body, 1),
    ],
)
def test_rows(change: Callable[[list[dict[str, Any]]], object], checks: int) -> None:
    found = rows()
    change(found)
    assert len(failed(check_rows(found, published()))) == checks


def summaries() -> list[Received]:
    by_symbol: dict[str, list[dict[str, Any]]] = {}
    for row in rows():
        header = row["application_headers"]
        by_symbol.setdefault(header["symbol"], []).append(header)
    made = []
    for symbol, each in by_symbol.items():
        headers = {"symbol": symbol, "ticks": len(each), "last": each[-1]["price"]}
        more = {"qty": sum(row["qty"] for row in each), "mean": round(sum(r["price"] for r in each) / len(each), 4)}
        made.append(Received(json.dumps(headers | more).encode(), headers, f"summary.{symbol}"))
    return made


@pytest.mark.parametrize(
    ("change", "checks"),
    [
        (lambda found: found, 0),
        (lambda found: found[1:], 1),
        (lambda found: [*found, found[0]], 1),
        (lambda found: [found[0]._replace(routing_key="summary"), *found[1:]], 1),
        (lambda found: [found[0]._replace(headers=found[1].headers), *found[1:]], 1),
        (lambda found: [found[0]._replace(body=found[0].body.replace(b'"qty": ', b'"qty": 1')), *found[1:]], 1),
    ],
)
def test_summaries(change: Callable[[list[Received]], list[Received]], checks: int) -> None:
    assert len(failed(check_summaries(rows(), change(summaries())))) == checks
