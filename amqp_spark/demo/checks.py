"""The proof: what must hold of rows and summaries, computed without Spark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from amqp_spark.demo.steps import Published


def check_rows(rows: Sequence[Mapping[str, Any]], published: Published) -> dict[str, bool]:
    """Check rows against what was published; return each check and whether it holds."""
    headers = [row["application_headers"] for row in rows]
    ids = sorted(header["id"] for header in headers)
    total = sum(header["qty"] for header in headers)
    return {
        f"{len(rows):,} rows for {published.messages:,} published and confirmed messages": len(rows)
        == published.messages,
        "every published id is there exactly once": ids == list(range(published.messages)),
        "message ids are all different": len({row["message_id"] for row in rows}) == len(rows),
        f"the quantities sum up to {total:,}, as published": total == published.quantity,
        "every body says the same as its typed headers": all(
            json.loads(row["body"]) == header for row, header in zip(rows, headers, strict=True)
        ),
        "every routing key is that of its symbol": all(
            row["routing_key"] == f"ticks.{header['symbol']}" for row, header in zip(rows, headers, strict=True)
        ),
    }


def check_summaries(rows: Sequence[Mapping[str, Any]], found: Sequence[Any]) -> dict[str, bool]:
    """Check received summaries against those of the rows; return each check and whether it holds."""
    wanted = _summaries(rows)
    bodies = [json.loads(message.body) for message in found]
    return {
        f"{len(found)} summaries came back, one per symbol": sorted(body["symbol"] for body in bodies)
        == sorted(wanted),
        "their counts, sums, last and mean prices are those of the ticks": all(
            _same(body, wanted.get(body["symbol"], {})) for body in bodies
        ),
        "their typed headers and routing keys say the same": all(
            message.headers == {name: body[name] for name in ("symbol", "ticks", "last")}
            and message.routing_key == f"summary.{body['symbol']}"
            for message, body in zip(found, bodies, strict=True)
        ),
    }


def read_rows(directory: Path) -> list[dict[str, Any]]:
    """The rows of the Parquet files."""
    return pq.read_table(directory).to_pylist()


def _summaries(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    ticks: dict[str, list[dict[str, Any]]] = {}
    for header in sorted((row["application_headers"] for row in rows), key=lambda each: each["id"]):
        ticks.setdefault(header["symbol"], []).append(header)
    return {
        symbol: {
            "symbol": symbol,
            "ticks": len(each),
            "qty": sum(row["qty"] for row in each),
            "last": each[-1]["price"],
            "mean": round(sum(row["price"] for row in each) / len(each), 4),
        }
        for symbol, each in ticks.items()
    }


def _same(body: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether two summaries are equal except for rounding of the mean: Spark adds up in another order."""
    return body.keys() == wanted.keys() and all(
        abs(value - wanted[name]) < 0.001 if name == "mean" else value == wanted[name] for name, value in body.items()
    )
