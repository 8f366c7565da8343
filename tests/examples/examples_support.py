"""Running the examples as users do: from an empty directory, with ticks on a queue of the embedded broker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyspark

from amqp_core import connect
from amqp_spark.demo.steps import Place
from amqp_spark.demo.ticks import Tick, send, ticks
from tests.support.jobs import ROOT
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from amqp_core.broker import Broker

EXAMPLES = ROOT / "examples"
COUNT = 1000
LARGE = 450
"""Examples that publish send ticks with this quantity or a larger one to the queue "large"."""


class Queues(NamedTuple):
    """A virtual host with the queues of the examples; "ticks" has 1,000 messages."""

    place: Place
    sent: list[Tick]

    @classmethod
    def on(cls, broker: Broker) -> Queues:
        """What README.md of the examples has users prepare: a broker, its queues, and ``jobs/market_data.py``."""
        place = Place(broker.url_of(broker.add_virtual_host()), broker.username, broker.password)
        sent = list(ticks(COUNT, seed=1))
        with connect(place.of_client) as client:
            for queue in ("ticks", "large"):
                client.declare_queue(queue, durable=True)
            client.bind("ticks", "amq.topic", "ticks.#")
            for tick in sent:
                send(client, tick, "amq.topic")
            client.confirm()
        return cls(place, sent)

    @property
    def large(self) -> list[str]:
        """The bodies of large ticks, sorted."""
        return sorted(tick.body.decode() for tick in self.sent if tick.qty >= LARGE)

    @property
    def ids(self) -> list[str]:
        """All message ids, sorted."""
        return sorted(str(tick.message_id) for tick in self.sent)

    def depth(self, queue: str) -> int:
        """How many messages are on a queue."""
        with connect(self.place.of_client) as client:
            found = client.query_queue(queue)
        assert found is not None
        return found.message_count or 0

    def bodies(self, queue: str) -> list[str]:
        """The bodies of all messages of a queue, sorted; it is empty then."""
        count = self.depth(queue)
        with connect(self.place.of_client) as client:
            subscription = client.subscribe(queue)
            if client.capabilities.credit:
                subscription.grant(count)
            found = [subscription.take_one(timeout=60.0) for _ in range(count)]
            client.accept([(message.transfer_id, message.transfer_id) for message in found if message is not None])
            client.sync()
        return sorted(message.body.decode() for message in found if message is not None)

    def environment(self, directory: Path, settings: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of a user (:func:`environment`) with the login."""
        login = {f"AMQP_{name.upper()}": value for name, value in self.place.of_connector.items()}
        return environment(directory, settings) | login


def environment(directory: Path, settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment with the package and Spark's commands on the PATH.

    ``settings`` are in ``spark-defaults.conf``, in ``directory``.
    """
    conf = directory / "conf"
    conf.mkdir()
    quick = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1", "spark.ui.showConsoleProgress": "false"}
    lines = (f"{name} {value}\n" for name, value in (quick | dict(settings or {})).items())
    (conf / "spark-defaults.conf").write_text("".join(lines), encoding="utf-8")
    return os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_CONF_DIR": str(conf),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


class ConnectServer(NamedTuple):
    """A server of Spark Connect: its URL, and the directory in which it runs."""

    url: str
    directory: Path

    @classmethod
    @contextmanager
    def running(cls, directory: Path) -> Iterator[ConnectServer]:
        """Run one on a free port, since programs that start their own all take the same one."""
        name, log = "org.apache.spark.sql.connect.service.SparkConnectServer", directory / "server.log"
        settings = {"spark.connect.grpc.binding.port": "0", "spark.master": "local[2]"}
        with log.open("wb") as sink:
            server = subprocess.Popen(
                [f"{Path(sys.executable).parent}/spark-submit", "--class", name],
                env=environment(directory, settings),
                cwd=directory,
                stdout=sink,
                stderr=sink,
            )

        def port() -> str | None:
            found = re.search(r"Spark Connect server started at: \S*:(\d+)", log.read_text(encoding="utf-8"))
            return found and found[1]

        try:
            wait_until(lambda: port() is not None or server.poll() is not None, "the port of Spark Connect", 120)
            assert server.poll() is None, log.read_text(encoding="utf-8")
            yield cls(f"sc://127.0.0.1:{port()}", directory)
        finally:
            server.terminate()
            server.wait(60)


def run(*command: str, env: Mapping[str, str], directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, in the directory that the example writes to."""
    return subprocess.run(command, env=env, cwd=directory, capture_output=True, text=True, timeout=560, check=False)


def succeeds(*command: str, env: Mapping[str, str], directory: Path) -> str:
    """Run a command; return its standard output."""
    done = run(*command, env=env, directory=directory)
    assert done.returncode == 0, done.stdout + done.stderr[-8000:]
    return done.stdout
