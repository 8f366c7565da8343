"""``box_*``: the embedded broker alone, as a process of its own, which uses one core; bodies of 256 B.

Its clients are bare socket loops, one connection at a time. For ``box_durable_rate`` it is our own publisher with 1,000
messages in flight, since the window is what is measured. The value is that of the slower protocol.
"""

from __future__ import annotations

import gc
import socket
import subprocess
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psutil

from amqp_core.address import ConnectOptions
from amqp_core.v0_9.client import Client as Client09
from amqp_core.v0_10 import spec
from amqp_core.v0_10.client import Client as Client010
from tests.bench import preload, raw_0_9, rawloop, rawpublish
from tests.bench.environment import Result, middle, rounded
from tests.support import runs, runs_0_9
from tests.support.box_process import BoxProcess
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_core.v0_10.driver import Driver

MESSAGES = 200_000
DURABLE = 50_000
ROUNDS = 3
STARTS = 5
IN_FLIGHT = 1000
BODY = bytes(256)
QUEUE = "bench"
EXPLICIT = spec.MessageAcceptMode.EXPLICIT


def options(broker: BoxProcess) -> ConnectOptions:
    """How to connect."""
    return ConnectOptions(
        hosts=((broker.host, broker.port),), virtual_host="/", username=broker.username, password=broker.password
    )


class Bare010:
    """Bare loops over 0-10."""

    def __init__(self, broker: BoxProcess) -> None:
        self._options = options(broker)

    def publish(self, count: int) -> float:
        """Seconds until all are completed."""
        blocks = rawpublish.ready_made(QUEUE, count, body_bytes=len(BODY), accept_mode=EXPLICIT)
        return self._with_driver(lambda driver: rawpublish.publish(driver, blocks, count))

    def drain(self, count: int) -> float:
        """Seconds until all are accepted."""
        return self._with_driver(lambda driver: rawloop.drain(driver, QUEUE, count))

    def durable(self, count: int) -> float:
        """Seconds until all persistent messages are completed."""
        persistent = spec.MessageDeliveryMode.PERSISTENT
        run = runs.run([BODY] * IN_FLIGHT, routing_key=QUEUE, accept_mode=EXPLICIT, delivery_mode=persistent)
        with closing(Client010.connect(self._options)) as client:
            return _published(client, run, count)

    def _with_driver(self, do: Callable[[Driver], float]) -> float:
        gc.collect()
        client = Client010.connect(self._options)
        try:
            return do(client._driver)
        finally:
            client.abort()


class Bare09:
    """Bare loops over 0-9-1."""

    def __init__(self, broker: BoxProcess) -> None:
        self._options = options(broker)

    def publish(self, count: int) -> float:
        """Seconds until all are confirmed."""
        gc.collect()
        size = preload.BLOCK_MESSAGES
        blocks = raw_0_9.ready_made(QUEUE, count, body_bytes=len(BODY))
        return raw_0_9.publish(self._options, blocks, [min(size, count - at) for at in range(0, count, size)])

    def drain(self, count: int) -> float:
        """Seconds until all are acknowledged."""
        gc.collect()
        return raw_0_9.drain(self._options, QUEUE, count)

    def durable(self, count: int) -> float:
        """Seconds until all persistent messages are confirmed."""
        run = runs_0_9.run([BODY] * IN_FLIGHT, routing_key=QUEUE, delivery_mode=2)
        with closing(Client09.connect(self._options)) as client:
            return _published(client, run, count)


def _published(client: Any, run: Any, count: int) -> float:
    publisher = client.publisher(max_in_flight=IN_FLIGHT)
    begin = time.perf_counter()
    for _ in range(count // IN_FLIGHT):
        publisher.send(run)
    publisher.finish()
    return time.perf_counter() - begin


PROTOCOLS: dict[str, Callable[[BoxProcess], Bare010 | Bare09]] = {"0-10": Bare010, "0-9-1": Bare09}


def rates(*, messages: int = MESSAGES, rounds: int = ROUNDS) -> list[Result]:
    """``box_publish_rate``, ``box_drain_rate``, ``box_message_bytes``."""
    publish: dict[str, list[float]] = {}
    drain: dict[str, list[float]] = {}
    weight: dict[str, list[float]] = {}
    for protocol, bare in PROTOCOLS.items():
        for _ in range(rounds):
            with BoxProcess(durable=False) as broker:
                _declare(broker)
                before = psutil.Process(broker.pid).memory_info().rss
                loops = bare(broker)
                publish.setdefault(protocol, []).append(messages / loops.publish(messages))
                grown = psutil.Process(broker.pid).memory_info().rss - before
                weight.setdefault(protocol, []).append(grown / messages)
                drain.setdefault(protocol, []).append(messages / loops.drain(messages))
    return [
        _rate("box_publish_rate", publish, messages),
        _rate("box_drain_rate", drain, messages),
        Result(
            name="box_message_bytes",
            value=max(middle(each) for each in weight.values()),
            unit="B",
            higher_is_better=False,
            detail={"messages": messages, **{protocol: rounded(each) for protocol, each in weight.items()}},
        ),
    ]


def durable(*, messages: int = DURABLE, rounds: int = ROUNDS) -> list[Result]:
    """``box_durable_rate``."""
    found: dict[str, list[float]] = {}
    for protocol, bare in PROTOCOLS.items():
        for _ in range(rounds):
            with BoxProcess() as broker:
                _declare(broker)
                found.setdefault(protocol, []).append(messages / bare(broker).durable(messages))
    return [_rate("box_durable_rate", found, messages)]


def starts(*, rounds: int = STARTS) -> list[Result]:
    """``box_start_s``: from the start of the process until a client has an open channel, on which it may publish."""
    found = []
    for _ in range(rounds):
        port = free_port()
        begin = time.perf_counter()
        command = [sys.executable, "-m", "amqp_core.broker", "--port", str(port)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                _wait_for_port(process, port)
                address = ConnectOptions(
                    hosts=(("127.0.0.1", port),), virtual_host="/", username="guest", password="guest"
                )
                with raw_0_9.RawConnection(address):
                    found.append(time.perf_counter() - begin)
            finally:
                process.kill()
    return [
        Result(name="box_start_s", value=middle(found), unit="s", higher_is_better=False, detail={"s": rounded(found)})
    ]


def _wait_for_port(process: subprocess.Popen[bytes], port: int) -> None:
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=10).close()
        except ConnectionRefusedError:
            time.sleep(0.002)
        else:
            return
    raise RuntimeError(f"the broker ended with exit code {process.returncode}")


def _declare(broker: BoxProcess) -> None:
    with closing(Client09.connect(options(broker))) as client:
        client.declare_queue(QUEUE, durable=True)


def _rate(name: str, found: dict[str, list[float]], messages: int) -> Result:
    return Result(
        name=name,
        value=min(middle(each) for each in found.values()),
        unit="messages/s",
        higher_is_better=True,
        detail={"messages": messages, **{protocol: [round(rate) for rate in each] for protocol, each in found.items()}},
    )


def run() -> list[Result]:
    """All of them."""
    return [*rates(), *durable(), *starts()]
