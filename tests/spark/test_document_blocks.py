"""The code in README and docs runs: Python on the embedded broker, commands against the help of the programs.

The blocks of a page run in their order with the same names, as a reader would type them. Only addresses, logins and
paths are replaced, and a streaming query gets the trigger AvailableNow if it has none. A stream that a block defines
without starting it is read to its end. What a page takes for granted is in :class:`Page`.
"""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from amqp_core import ConnectOptions, connect, parse_url
from amqp_spark import program
from tests.support.documents import PAGES, README, ROOT, blocks, shell_commands
from tests.support.process import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.support.documents import Block
    from tests.support.fixtures import OwnRabbitMQ

DOCUMENTS = [README, *PAGES]
WITH_EXAMPLES = [*DOCUMENTS, ROOT / "examples" / "README.md"]
ADDRESS = re.compile(r'"amqps?://[\w.]+(?::5672)?(?:/\w*)?"')
MESSAGES = 3


@dataclass(frozen=True)
class Page:
    """What a page takes for granted, and what it has done at its end.

    Args:
        queues: that are declared, and get three messages before each block.
        empty: queues that are declared without messages.
        bound: the one of them that is bound to the exchanges of the page with every routing key.
        exchanges: that are declared.
        streams: of RabbitMQ, in the same way.
        left: messages in queues at its end.
    """

    queues: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    bound: str | None = None
    exchanges: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()
    left: Mapping[str, int] = field(default_factory=dict)


GIVEN = {
    "README.md": Page(("orders",), empty=("archive",), bound="archive", left={"orders": 0, "archive": 1 + MESSAGES}),
    "docs/broker.md": Page(),
    "docs/columns.md": Page(("ticks",), left={"ticks": 0}),
    "docs/delivery.md": Page(("ticks",), left={"ticks": 0}),
    "docs/doctor.md": Page(("ticks",), left={"ticks": MESSAGES}),
    "docs/guarantees.md": Page(("orders",), empty=("archive",), bound="archive", left={"archive": MESSAGES}),
    "docs/migration.md": Page(("orders",), empty=("seen",), left={"orders": 0, "seen": 2 * MESSAGES}),
    "docs/qpid.md": Page(("orders",), left={"orders": 0}),
    "docs/quickstart.md": Page(empty=("orders", "seen"), left={"orders": 0, "seen": 2}),
}
ON_RABBITMQ = {
    "docs/rabbitmq.md": Page(
        streams=("quotes",), empty=("archive",), bound="archive", exchanges=("ticks",), left={"archive": 4 * MESSAGES}
    )
}


def prepare(client: Any, page: Page) -> None:
    for name in page.exchanges:
        client.declare_exchange(name, "fanout")
    for name in (*page.queues, *page.empty):
        client.declare_queue(name, durable=True)
    for name in page.streams:
        client.declare_queue(name, durable=True, arguments={"x-queue-type": "stream"})
    if page.bound is not None:
        for exchange in (*page.exchanges, "amq.topic"):
            client.bind(page.bound, exchange, "#")


def publish(client: Any, page: Page) -> None:
    for name in (*page.queues, *page.streams):
        for number in range(MESSAGES):
            client.publish_to_queue(name, b"%d" % number, content_type="text/plain")
    client.confirm()


def names_of_readers(spark: SparkSession, page: Page, broker: dict[str, str]) -> dict[str, Any]:
    """Names that pages use without a definition, since the reader has such things."""
    names: dict[str, Any] = {"spark": spark, "broker": broker}
    for queue in page.queues:
        stream = spark.readStream.format("amqp").options(**broker).option("queue", queue).schema("body STRING").load()
        names |= {"agg": stream, "frame": spark.createDataFrame([("one",)], "body STRING")}
    return names


def adapted(block: Block, broker: dict[str, str], directory: Path) -> str:
    """The code of a block for the broker and the directory of the test."""
    code = ADDRESS.sub(f'"{broker["url"]}"', block.code)
    code = code.replace('"/data/', f'"{directory}/').replace('"/run/secrets/', f'"{directory}/')
    code = code.replace('"username": "spark"', f'"username": "{broker["username"]}"')
    return code if ".trigger(" in code else code.replace(".start(", ".trigger(availableNow=True).start(")


def finish(spark: SparkSession, names: dict[str, Any], started: str, directory: Path, *, others: set[str]) -> None:
    """Wait for what a block has started; read a stream that it only defined. ``others``: queries of other tests."""
    if ".start(" not in started:
        defined = re.findall(r"^(\w+) = ", started, re.MULTILINE)
        streams = [name for name in defined if isinstance(names[name], DataFrame) and names[name].isStreaming]
        for name in streams[-1:]:
            writer = names[name].writeStream.format("noop").option("checkpointLocation", str(directory / f"{name}.log"))
            writer.trigger(availableNow=True).start()
    for query in spark.streams.active:
        assert query.id in others or query.awaitTermination(60), "the query has not ended"
    for query in names.values():
        if isinstance(query, StreamingQuery):
            assert query.exception() is None


def run(name: str, page: Page, spark: SparkSession, broker: dict[str, str], directory: Path) -> None:
    """Run the blocks of a page, and look at the queues."""
    hosts, virtual_host, _ = parse_url(broker["url"])
    for file in ("rabbit", "qpid"):
        (directory / file).write_text(broker["password"], encoding="utf-8")
        (directory / file).chmod(0o600)
    names = names_of_readers(spark, page, broker)
    others = {query.id for query in spark.streams.active}  # Spark lists one that has failed with asynchronous progress
    login = ConnectOptions(
        hosts=hosts, virtual_host=virtual_host, username=broker["username"], password=broker["password"]
    )
    with connect(login) as client:
        prepare(client, page)
        for block in blocks(ROOT / name, "python"):
            if block.runs_here:
                publish(client, page)
                code = adapted(block, broker, directory)
                exec(compile(block.compiled_from(code), name, "exec", dont_inherit=True), names)
                finish(spark, names, code, directory, others=others)

        def left() -> dict[str, int | None]:
            found = {queue: client.query_queue(queue) for queue in page.left}
            return {queue: None if info is None else info.message_count for queue, info in found.items()}

        wait_until(lambda: left() == page.left, f"{page.left} messages on the queues", timeout_s=60.0)


def test_every_block_runs_or_is_marked() -> None:
    every = [block for path in WITH_EXAMPLES for block in blocks(path)]
    assert [block for block in every if not (block.runs_here or block.is_marked)] == []
    python = [block for path in DOCUMENTS for block in blocks(path, "python")]
    assert {block.document for block in python if block.runs_here} == {*GIVEN, *ON_RABBITMQ}
    elsewhere = [block.mark.removeprefix("run by ") for block in python if block.mark.startswith("run by ")]
    assert len(elsewhere) >= 5
    assert all((ROOT / path).exists() for path in elsewhere)
    assert sum(block.runs_here for block in python) > sum(block.mark.startswith("not run: ") for block in python)


# Pages that only define a stream: `make test-all` reads it.
DEFINING = {"docs/columns.md", "docs/delivery.md", "docs/qpid.md"}


@pytest.mark.spark
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough) if name in DEFINING else name for name in GIVEN]
)
def test_the_blocks_of_a_page_run(name: str, spark: SparkSession, amqp_url: str, tmp_path: Path) -> None:
    run(name, GIVEN[name], spark, {"url": amqp_url, "username": "guest", "password": "guest"}, tmp_path)


@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.thorough
@pytest.mark.parametrize("name", ON_RABBITMQ)
def test_the_blocks_of_a_page_run_on_rabbitmq(
    name: str, spark: SparkSession, own_rabbitmq: OwnRabbitMQ, tmp_path: Path
) -> None:
    node = own_rabbitmq()
    broker = {"url": node.url("/"), "username": node.username, "password": node.password}
    run(name, ON_RABBITMQ[name], spark, broker, tmp_path)


@cache
def help_of(*words: str) -> str:
    """The help of a command, and that it has one."""
    with redirect_stdout(io.StringIO()) as shown, pytest.raises(SystemExit) as done:
        program.main([*words, "--help"])
    assert done.value.code == 0, words
    return shown.getvalue()


def targets_of_make() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def check_own_command(words: list[str]) -> None:
    """A command of ``amqp-spark`` exists, and so do its options."""
    first = next((place for place, word in enumerate(words) if word.startswith("-")), len(words))
    usage = help_of(*(word for word in words[:first] if word != "…"))
    for option in (word for word in words if word.startswith("--")):
        assert re.search(rf"(?<![\w-]){option}\b(?!-)", usage), f"{' '.join(words[:first])} has no {option}"


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: path.name)
def test_commands_and_options_that_the_documents_show_exist(path: Path) -> None:
    foreign = {"cd", "export", "git", "ingest", "pip", "sh", "spark-pipelines", "spark-submit"}  # ingest: a function
    for command, *words in shell_commands(path):
        if command == "amqp-spark":
            check_own_command(words)
        elif command == "make":
            assert words[0] in targets_of_make(), words
        elif command == "python":
            assert (ROOT / words[0]).exists(), words
        else:
            assert command in foreign, f"{path.name} shows {command}: check its options here, too"
