"""Options of exactly-once for one consumer or writer, and what must be clean when it is done."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from amqp_spark.state.names import CONSUMER, WRITER, Names
from amqp_spark.state.records import DONE, WriterState
from amqp_spark.transactions.browse import find
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.bench.environment import Environment

EXACTLY_ONCE = {"deliveryGuarantee": "exactly-once"}


@contextmanager
def consumer(env: Environment) -> Iterator[dict[str, str]]:
    """Options of a source with a new identity, with a spool on this machine.

    Raises:
        RuntimeError: at the end a batch is owned, or a file is left in the spool.
    """
    identity = f"bench {uuid.uuid4()}"
    spool = env.directory / f"spool-{uuid.uuid4().hex[:8]}"
    names = Names(CONSUMER, identity)
    try:
        yield {**EXACTLY_ONCE, "consumerId": identity, "spoolLocation": str(spool)}
        wait_until(lambda: env.is_free(names.lock), "the end of the reader", 60.0)
        state = env.consumer_state(identity, str(spool))
        if state is None or state.owned:
            raise RuntimeError(f"not clean at the end: {state}")
        wait_until(lambda: not list(spool.glob("*.spool")), "an empty spool", 60.0)
    finally:
        _forget(env, names.state)


@contextmanager
def writer(env: Environment) -> Iterator[dict[str, str]]:
    """Options of a sink with a new identity.

    Raises:
        RuntimeError: at the end a batch is not done, or a branch or marker is left.
    """
    identity = f"bench {uuid.uuid4()}"
    names = Names(WRITER, identity)
    try:
        yield {**EXACTLY_ONCE, "transactionalId": identity}
        with env.client() as client:
            found = find(client, names.state, names.lock, WriterState)
        markers = env.depth(names.markers)
        if found.state is None or found.state.state != DONE or markers:
            raise RuntimeError(f"not clean at the end: {found}, {markers} markers")
    finally:
        _forget(env, names.state, names.markers)


def _forget(env: Environment, *queues: str) -> None:
    with env.client() as client:
        for queue in queues:
            if client.query_queue(queue) is not None:
                client.delete_queue(queue)


def spooled_bytes(options: Mapping[str, str]) -> int:
    """Bytes in the files of a spool now."""
    return sum(path.stat().st_size for path in Path(options["spoolLocation"]).glob("*.spool"))
