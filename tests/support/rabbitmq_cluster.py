"""A real cluster: three RabbitMQ nodes on one machine, of which tests kill one at a time."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from tests.support.port_mapper import PortMapper
from tests.support.process import wait_until
from tests.support.rabbitmq import RabbitMQConfig, RabbitMQNode, binary
from tests.support.rabbitmq_needed import start_or_skip

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.rabbitmq_install import Release

NODES = 3


class RabbitMQCluster:
    """Three joined nodes. Quorum queues that are declared here have three members, and streams three replicas."""

    def __init__(self, config: RabbitMQConfig | None = None) -> None:
        self.config = config or RabbitMQConfig()
        self._mapper = PortMapper()
        self.nodes: Sequence[RabbitMQNode] = [
            # Nodes that join take users and virtual hosts from the first.
            RabbitMQNode(replace(self.config), self._mapper)
            for _ in range(NODES)
        ]

    def __enter__(self) -> Self:
        self.start_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def release(self) -> Release:
        """The release of the nodes."""
        return self.config.release

    @property
    def version(self) -> str:
        """The version of the server, such as ``4.3.6``."""
        return self.nodes[0].version

    @property
    def username(self) -> str:
        """The login that may do everything."""
        return self.nodes[0].username

    @property
    def password(self) -> str:
        """Its password."""
        return self.nodes[0].password

    def url(self, vhost: str = "durable", first: RabbitMQNode | None = None) -> str:
        """The URL of a virtual host with all hosts; ``first``: the node that it names first."""
        nodes = sorted(self.nodes, key=lambda node: node is not first)
        found = [urlsplit(node.url(vhost)) for node in nodes]
        return f"amqp://{','.join(each.netloc for each in found)}{found[0].path}"

    def start_all(self) -> None:
        """Start the nodes and join them."""
        first, *others = self.nodes
        start_or_skip(first)

        def join(node: RabbitMQNode) -> None:
            node.start()
            node.ctl("stop_app")

        with ThreadPoolExecutor() as pool:
            list(pool.map(join, others))
        for node in others:  # one after the other: each changes the members of the cluster
            node.ctl("join_cluster", first.name)
            node.ctl("start_app")
        wait_until(
            lambda: all(len(_names(node.evaluate("[node() | nodes()]"))) == NODES for node in self.nodes), "a cluster"
        )

    def close(self) -> None:
        """End the nodes and remove their directories."""
        for node in self.nodes:
            node.close()
        self._mapper.kill9()

    def kill9(self, node: RabbitMQNode) -> None:
        """Kill a node."""
        node.kill9()

    def start(self, node: RabbitMQNode) -> None:
        """Start a node that was killed."""
        node.start()

    def restore(self) -> None:
        """Start each node that does not run."""
        for node in self.nodes:
            if not node.running:
                node.start()

    def leader_of(self, queue: str, vhost: str = "durable") -> RabbitMQNode:
        """The node that has the leader of a queue or stream, once it runs."""
        found: list[RabbitMQNode] = []

        def elected() -> bool:
            leader = self._info(queue, vhost, "leader")
            found[:] = [node for node in self.nodes if node.running and [node.name] == leader]
            return bool(found)

        wait_until(elected, f"a leader of {queue!r}", 60)
        return found[0]

    def members_of(self, queue: str, vhost: str = "durable") -> list[str]:
        """Names of the nodes that have a replica of a queue or stream."""
        return sorted(self._info(queue, vhost, "members"))

    def online(self, queue: str, vhost: str = "durable") -> list[str]:
        """Names of the nodes whose replica runs."""
        return sorted(self._info(queue, vhost, "online"))

    def wait_for_replicas(self, *queues: str, vhost: str = "durable", timeout_s: float = 60) -> None:
        """Wait until every replica runs and has what any of them had when this was called, so that the next node may be
        killed. Replicas of streams start some 7 seconds after their node."""
        for queue in queues:
            wait_until(_Replicas(self, queue, vhost).are_whole, f"all replicas of {queue!r}", timeout_s, poll_s=0.1)

    def evaluate(self, expressions: str) -> str:
        """Evaluate Erlang expressions on a node that runs."""
        return next(node for node in self.nodes if node.running).evaluate(expressions)

    # -- internals -----------------------------------------------------------------------------------------

    def _info(self, queue: str, vhost: str, item: str) -> list[str]:
        name = f"rabbit_misc:r({binary(vhost)}, queue, {binary(queue)})"
        info = f"proplists:get_value({item}, rabbit_amqqueue:info(Q, [{item}]))"
        try:
            return _names(self.evaluate(f"{{ok, Q}} = rabbit_amqqueue:lookup({name}), {info}"))
        except RuntimeError:  # it is just changing
            return []


class _Replicas:
    """The replicas of one queue or stream."""

    def __init__(self, cluster: RabbitMQCluster, queue: str, vhost: str) -> None:
        self._cluster = cluster
        self._queue = queue
        self._vhost = vhost
        self._least: int | None = None

    def are_whole(self) -> bool:
        """Whether all run, and have what any had at the first call."""
        ends = self._ends()
        if self._least is None:
            self._least = max(ends, default=None)
        if len(ends) < NODES or self._least is None or min(ends) < self._least:
            return False
        return len(self._cluster.online(self._queue, self._vhost)) == NODES

    def _ends(self) -> list[int]:
        """Of each replica that runs, where its log ends."""
        where = f"({binary(self._vhost)}, {binary(self._queue)})"
        keys = f"[offset, {binary('Commit Index')}]"
        asked = (
            f"Ask = fun() -> case catch rabbit_quorum_queue:status{where} of L when is_list(L) -> L; "
            f"_ -> rabbit_stream_queue:status{where} end end, "
            # A tuple: erl_call shows a list of small numbers as a text.
            f"list_to_tuple([V || P <- Ask(), K <- {keys}, V <- [proplists:get_value(K, P)], is_integer(V)])"
        )
        try:
            return [int(each) for each in re.findall(r"-?\d+", self._cluster.evaluate(asked))]
        except RuntimeError:  # it is just changing
            return []


def _names(text: str) -> list[str]:
    return re.findall(r"rabbit\d+@localhost", text)
