"""Apache Kafka from Maven Central: one node that is broker and controller (KRaft).

The benchmarks compare Spark's Kafka source with ours; no test needs it.
"""

from __future__ import annotations

import subprocess
import uuid
from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING, ClassVar

from tests.support.broker_process import HOST, BrokerFailed, BrokerProcess
from tests.support.maven import cache_root, cached_directory, fetch_dependencies, written_pom
from tests.support.ports import free_port
from tests.support.prerequisites import require_java

if TYPE_CHECKING:
    from pathlib import Path

VERSION = "4.3.1"
SPARK = "4.2.0"
"""Its Kafka source is what the benchmarks compare with."""
SPARK_SOURCE = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK}"
_PACKAGES = (f"org.apache.kafka:kafka_2.13:{VERSION}", "org.slf4j:slf4j-simple:1.7.36")
_CACHE_NAME = f"kafka-{VERSION}"
_FORMAT_TIMEOUT_S = 120


def is_fetched() -> bool:
    """Whether the node's jars are in the cache."""
    return (cache_root() / _CACHE_NAME).is_dir()


def jars() -> Path:
    """Return the directory of the node's jars, fetching them on first use."""

    def fill(directory: Path) -> None:
        with written_pom(_PACKAGES) as pom:
            fetch_dependencies(pom, directory)

    return cached_directory(_CACHE_NAME, fill)


class KafkaNode(BrokerProcess):
    """One node and its work directory; a topic that does not exist is made when it is first written to.

    Args:
        heap: of the JVM, as for ``-Xmx``.
        partitions: of the topics.
    """

    title: ClassVar[str] = "Kafka"
    ready: ClassVar[str] = "Kafka Server started"
    bind_failed: ClassVar[str] = "Address already in use"

    def __init__(self, *, heap: str = "1g", partitions: int = 2) -> None:
        super().__init__()
        self._heap = heap
        self._partitions = partitions
        self._port = self._controller_port = 0

    @property
    def servers(self) -> str:
        """The address for clients: ``bootstrap.servers``."""
        return f"{HOST}:{self._port}"

    def _prepare(self, work_dir: Path) -> None:
        self._port, self._controller_port = free_port(), free_port()
        settings = self._settings(work_dir)
        lines = "".join(f"{name}={value}\n" for name, value in settings.items())
        self._properties(work_dir).write_text(lines, encoding="utf-8")
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = [*self._java("256m"), "kafka.tools.StorageTool", "format", "--cluster-id", cluster]
        done = subprocess.run(
            [*command, "--config", str(self._properties(work_dir))],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_FORMAT_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise BrokerFailed(f"Kafka could not format its directory:\n{done.stdout[-4000:]}")

    def _command(self, work_dir: Path) -> list[str]:
        return [*self._java(self._heap), "kafka.Kafka", str(self._properties(work_dir))]

    def _port_is_given(self) -> bool:
        return False

    def _settings(self, work_dir: Path) -> dict[str, object]:
        listener, controller = f"PLAINTEXT://{self.servers}", f"CONTROLLER://{HOST}:{self._controller_port}"
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{HOST}:{self._controller_port}",
            "listeners": f"{listener},{controller}",
            "advertised.listeners": listener,
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": work_dir / "log",
            "num.partitions": self._partitions,
            "auto.create.topics.enable": "true",
            # One node has one copy of everything.
            "default.replication.factor": 1,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
        }

    @staticmethod
    def _properties(work_dir: Path) -> Path:
        return work_dir / "server.properties"

    @staticmethod
    def _java(heap: str) -> list[str]:
        return [require_java(), f"-Xmx{heap}", "-cp", f"{jars()}/*"]
