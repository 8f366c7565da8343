"""``peer_ratio``: the peer is a script with python-qpid-proton, which speaks AMQP 1.0 with the same broker."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.bench.bench_peer import Program, compare, script
from tests.support import proton
from tests.support.brokerj import BrokerJ

if TYPE_CHECKING:
    from pathlib import Path

    from tests.bench.environment import Environment, Result


def run(env: Environment) -> list[Result]:
    """Compare."""
    proton.directory()  # before anything takes time
    return compare(env, "peer_ratio", _peer)


def _peer(env: Environment, queue: str, count: int, directory: Path) -> Program:
    program = script("tests.bench.peers.proton_script", queue, count, directory, path=proton.directory())
    if isinstance(env.broker, BrokerJ):  # proton without Cyrus SASL has no mechanism for a password but PLAIN
        return replace(program, variables={**program.variables, "PEER_PORT": str(env.broker.ports["plain"])})
    return program
