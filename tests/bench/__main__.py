"""``python -m tests.bench [name ...]``: run benchmarks, print a table, write ``build/bench.json``."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tests.bench.apart import ApartFailed
from tests.bench.environment import Environment, Result, Sizes
from tests.support.brokerj import BrokerFailed
from tests.support.maven import FetchFailed
from tests.support.prerequisites import PrerequisiteMissing
from tests.versions.environment import EnvironmentFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

OUTPUT = Path(__file__).parents[2] / "build" / "bench.json"

# name -> module with ``run``
BENCHMARKS: dict[str, str] = {
    "decode_rate": "bench_decode",
    "drain_ratio": "bench_drain",
    "growth": "bench_growth",
    "many_queues": "bench_many_queues",
    "latency_ratio": "bench_latency",
    "large_message_ratio": "bench_large",
    "reader_rss_mb": "bench_memory",
    "reader_rss_mixed_mb": "bench_memory_mixed",
    "idle_cpu": "bench_idle",
    "encode_rate": "bench_encode",
    "publish_ratio": "bench_publish",
    "bridge_ratio": "bench_bridge",
    "publish_rss_mb": "bench_publish_memory",
    "small_batch_ms": "bench_small_batch",
    "eo_source_ratio": "bench_eo_source",
    "eo_sink_ratio": "bench_eo_sink",
    "recovery_s": "bench_recovery",
    "three_frames": "bench_three_frames",
    "box": "bench_box",
    "peer_ratio": "bench_peer_proton",
    "peer_jms_ratio": "bench_peer_jms",
    "kafka_drain_ratio": "bench_kafka_drain",
    "kafka_latency_ratio": "bench_kafka_latency",
    "scale": "bench_scale",
    "sizing": "bench_sizing",
}
# with BROKER=rabbitmq
RABBITMQ: dict[str, str] = {
    "rabbitmq_quorum_drain_ratio": "bench_drain",
    "rabbitmq_publish_ratio": "bench_publish",
    "rabbitmq_decode_rate": "bench_rabbitmq_decode",
    "rabbitmq_encode_rate": "bench_rabbitmq_encode",
    "rabbitmq_latency_ratio": "bench_latency",
    "rabbitmq_reader_rss_mixed_mb": "bench_memory_mixed",
    "rabbitmq_peer_ratio": "bench_peer_pika",
    "rabbitmq_eo_ratio": "bench_eo_source",
    "rabbitmq_stream_drain_ratio": "bench_stream_drain",
    "rabbitmq_stream_scale": "bench_stream_scale",
}
ALONE = ("decode_rate", "encode_rate", "rabbitmq_decode_rate", "rabbitmq_encode_rate", "box")
"""Those that need neither broker nor Spark."""
# What the project has promised itself; see README.md.
BOUNDS: dict[str, str] = {
    "decode_rate": ">= 1600000",
    "drain_ratio": ">= 0.75",
    "growth": "<= 1.05",
    "many_queues": "<= 2.5",
    "latency_ratio": "<= 1.3",
    "large_message_ratio": ">= 0.7",
    "reader_rss_mb": "<= bufferBytes + 150",
    "reader_rss_mixed_mb": "<= 158",
    "idle_cpu": "<= 0.015",
    "encode_rate": ">= 4000000",
    "publish_ratio": ">= 0.92",
    "bridge_ratio": ">= 0.8",
    "publish_rss_mb": "<= 200",
    "small_batch_ms": "<= 15",
    "eo_source_ratio": ">= 0.95",
    "eo_sink_ratio": ">= 0.92",
    "recovery_s": "<= 3",
    "three_frame_us": "<= 2.2",
    "peer_ratio": ">= 8",
    "peer_jms_ratio": ">= 1.5",
    "kafka_drain_ratio": ">= 0.5",
    "kafka_latency_ratio": "<= 1.2",
    "scale": ">= 1000000",
    "sizing": "a table",
    "box_publish_rate": ">= 40000",
    "box_drain_rate": ">= 40000",
    "box_durable_rate": ">= 10000",
    "box_message_bytes": "<= 1200",
    "box_start_s": "<= 0.5",
    "rabbitmq_quorum_drain_ratio": ">= 0.65",
    "rabbitmq_publish_ratio": ">= 0.85",
    "rabbitmq_decode_rate": ">= 1000000",
    "rabbitmq_encode_rate": ">= 2400000",
    "rabbitmq_latency_ratio": "<= 1.1",
    "rabbitmq_reader_rss_mixed_mb": "<= 158",
    "rabbitmq_peer_ratio": ">= 1.7",
    "rabbitmq_eo_ratio": ">= 0.85",
    "rabbitmq_stream_drain_ratio": ">= 0.9",
    "rabbitmq_stream_scale": ">= 0.9",
}


def run(name: str, env: Environment) -> list[Result]:
    """Run one benchmark."""
    module = importlib.import_module(f"tests.bench.{(BENCHMARKS | RABBITMQ)[name]}")
    if name in ALONE:
        return cast("Callable[[], list[Result]]", module.run)()
    results = cast("Callable[[Environment], list[Result]]", module.run)(env)
    if name in RABBITMQ:
        for result in results:
            result["name"] = name
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line, or else ``BENCH``, names; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Run benchmarks.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"one of {', '.join(BENCHMARKS)} (default: all)")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the figures go (default: build/bench.json)")
    options = parser.parse_args(arguments)
    broker = os.environ.get("BROKER") or "broker-j"
    if broker not in ("broker-j", "rabbitmq"):
        print(f"bench: BROKER={broker} is neither broker-j nor rabbitmq", file=sys.stderr)
        return 2
    known = RABBITMQ if broker == "rabbitmq" else BENCHMARKS
    names = options.names or os.environ.get("BENCH", "").replace(",", " ").split() or list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"bench: no benchmark {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    quick = os.environ.get("BENCH_QUICK", "") not in ("", "0")
    results: list[Result] = []
    try:
        with environment(broker, Sizes.quick() if quick else Sizes()) as env:
            for name in names:
                results += run(name, env)
                write(results, options.output)  # what there is, should the next one fail
    except (ApartFailed, BrokerFailed, EnvironmentFailed, FetchFailed, PrerequisiteMissing) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    if quick:
        print("BENCH_QUICK is set: these figures only prove that the benchmarks run")
    print(table(results))
    print(f"written to {options.output}")
    return 0


def environment(broker: str, sizes: Sizes) -> Environment:
    """The environment with a broker."""
    if broker == "rabbitmq":
        from tests.bench.rabbitmq import RabbitMQEnvironment  # noqa: PLC0415 - the others need no RabbitMQ

        return RabbitMQEnvironment(sizes=sizes)
    return Environment(sizes=sizes)


def write(results: Sequence[Result], output: Path) -> None:
    """Write the figures as a JSON list."""
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def table(results: Sequence[Result]) -> str:
    """The figures for people, each with what it was found from."""
    width = max(16, *(len(result["name"]) for result in results))
    lines = [f"{'name':<{width}} {'value':>12} {'unit':<12} {'bound':<22}", "-" * (width + 48)]
    for result in results:
        value = result["value"]
        shown = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
        lines.append(f"{result['name']:<{width}} {shown:>12} {result['unit']:<12} {BOUNDS.get(result['name'], ''):<22}")
        detail = result["detail"]
        if isinstance(detail, dict):
            lines += [f"    {key}: {found}" for key, found in detail.items()]
        elif detail:
            lines.append(f"    {detail}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
