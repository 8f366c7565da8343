"""``rabbitmq_peer_ratio``: the peer is a script with pika."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.bench.bench_peer import Program, compare, script

if TYPE_CHECKING:
    from pathlib import Path

    from tests.bench.environment import Environment, Result


def run(env: Environment) -> list[Result]:
    """Compare."""
    return compare(env, "rabbitmq_peer_ratio", _peer)


def _peer(env: Environment, queue: str, count: int, directory: Path) -> Program:
    del env
    return script("tests.bench.peers.pika_script", queue, count, directory)
