"""The environment of cases: a broker, a killable driver, a proxy before the broker. Each job has its own."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from amqp_core.errors import AmqpError
from tests.matrix.cases import CONNECTION
from tests.matrix.servers import BROKER_J, Server
from tests.matrix.subjects import Plan, Subject
from tests.support.dial import address, by_way_of
from tests.support.proxy import FaultProxy
from tests.support.query_process import CrashPoints, QueryProcess

if TYPE_CHECKING:
    from amqp_core.api import Client
    from tests.matrix.brokers import MortalBroker
    from tests.matrix.cases import Case

_SLOTS = 14
"""Concurrent tasks: each query that waits at a point inside a task occupies one slot."""


def driver_of(points: CrashPoints, slots: int = _SLOTS) -> QueryProcess:
    """A driver for cases, which has not started."""
    return QueryProcess(points=points, settings={"spark.master": f"local[{slots},4]"})


@dataclass
class Place:
    """A context manager that starts the environment, and ends it.

    ``given_driver``: one that several places use in turn, with these ``points``; its owner ends both.
    """

    slots: int = _SLOTS
    server: Server = BROKER_J
    given_broker: MortalBroker | None = None
    given_driver: QueryProcess | None = None
    points: CrashPoints = field(default_factory=CrashPoints)
    directory: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="amqp-spark-matrix-")))
    _clients: dict[str, Client] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.broker = self.given_broker or self.server.make()
        self.driver = self.given_driver or driver_of(self.points, self.slots)
        self._proxy: FaultProxy | None = None

    def __enter__(self) -> Self:
        try:
            self.broker.start()
            self._proxy = FaultProxy(address(self.broker), record=False)
            self._proxy.__enter__()
            if not self.driver.running:
                self.driver.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything."""
        self.forget_clients()
        if self.given_driver is None:
            self.driver.close()
            self.points.close()
        if self._proxy is not None:
            self._proxy.close()
        self.broker.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def proxy(self) -> FaultProxy:
        """The proxy between the broker and the queries that lose their connection."""
        assert self._proxy is not None
        return self._proxy

    def client(self, vhost: str) -> Client:
        """A connected client."""
        known = self._clients.get(vhost)
        if known is not None:
            try:
                known.query_queue("amqp-spark-matrix-lives")
            except AmqpError:
                known.discard()
            else:
                return known
        self._clients[vhost] = found = self.server.connect(self.broker, vhost)
        return found

    def forget_clients(self) -> None:
        """Drop the clients after the broker died."""
        for client in self._clients.values():
            with contextlib.suppress(AmqpError):
                client.discard()
        self._clients.clear()

    def subject(self, case: Case, seed: int, *, relaxed: bool = False) -> Subject:
        """Make a case with its data; ``relaxed``: points strike at their first pass."""
        plan = Plan.of(case, seed)
        if self.server.always_durable:
            plan = replace(plan, durable=True)
        if relaxed:
            plan = replace(plan, after=(0,) * len(plan.after))
        name = f"mx-{uuid.uuid4().hex[:8]}"
        vhost = "durable" if plan.durable else "default"
        url = self.broker.url(vhost)
        if CONNECTION in case.victims:
            url = by_way_of(self.proxy.port, url)
        subject = Subject(
            case=case,
            plan=plan,
            name=name,
            directory=self.directory / name,
            server=self.server,
            url=url,
            username=self.broker.username,
            password=self.broker.password,
        )
        subject.prepare(self.client(vhost))
        return subject

    def revive(self) -> None:
        """Make sure that broker and driver run, and that no process waits at a point."""
        self.points.disarm()
        if not self.broker.running:
            self.broker.start()
            self.forget_clients()
        if not self.driver.running:
            self.driver.start()
