"""Options of exactly-once for one consumer or writer, and what must be clean when it is done."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from amqp_spark.state.names import CONSUMER, WRITER, Names
from amqp_spark.state.records import ConsumerState, WriterState
from amqp_spark.transactions.look import find

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.environment import Environment

EXACTLY_ONCE = {"deliveryGuarantee": "exactly-once"}


@contextmanager
def consumer(env: Environment) -> Iterator[dict[str, str]]:
    """Options of a source that nobody had before, with a spool on this machine.

    Raises:
        RuntimeError: at the end a batch is owned, or a file is left in the spool.
    """
    identity = f"bench {uuid.uuid4()}"
    spool = env.directory / f"spool-{uuid.uuid4().hex[:8]}"
    names = Names(CONSUMER, identity)
    try:
        yield {**EXACTLY_ONCE, "consumerId": identity, "spoolLocation": str(spool)}
        with env.client() as client:
            state = find(client, names.state, names.lock, ConsumerState).state
        files = [path.name for path in spool.glob("*.spool")]
        if state is None or state.owned or files:
            raise RuntimeError(f"not clean at the end: state {state}, files {files}")
    finally:
        _forget(env, names.state)


@contextmanager
def writer(env: Environment) -> Iterator[dict[str, str]]:
    """Options of a sink that nobody had before.

    Raises:
        RuntimeError: at the end a batch is not done, or a branch or marker is left.
    """
    identity = f"bench {uuid.uuid4()}"
    names = Names(WRITER, identity)
    try:
        yield {**EXACTLY_ONCE, "transactionalId": identity}
        with env.client() as client:
            state = find(client, names.state, names.lock, WriterState).state
        markers = env.depth(names.markers)
        if state is None or state.state != "done" or markers:
            raise RuntimeError(f"not clean at the end: state {state}, {markers} markers")
    finally:
        _forget(env, names.state, names.markers)


def _forget(env: Environment, *queues: str) -> None:
    with env.client() as client:
        for queue in queues:
            if client.query_queue(queue) is not None:
                client.delete_queue(queue)


def spooled_bytes(options: dict[str, str]) -> int:
    """What the files of a spool hold now."""
    return sum(path.stat().st_size for path in Path(options["spoolLocation"]).glob("*.spool"))
