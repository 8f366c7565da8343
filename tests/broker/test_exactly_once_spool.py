"""Whole exactly-once queries over a spool on the local file system and in an object store, and a spool that fails them.

What every test proves in the end: each message is in the sink once, in order, and neither broker nor spool has anything
left; or the messages are named that were given up on request.
"""

from __future__ import annotations

import shutil
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import psutil
import pytest

from amqp_spark import crashpoints
from amqp_spark.spool.identity import IDENTITY
from amqp_spark.state.names import CONSUMER, Names
from amqp_spark.state.records import ConsumerState
from tests.broker.stream_support import depth, numbers, publish
from tests.matrix.leftovers import state_of
from tests.support.objectstore import BUCKET
from tests.support.process import wait_until
from tests.support.proxy import HOST, FaultProxy
from tests.support.query_process import CrashPoints, Query, QueryProcess, is_slow_start

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from amqp_core.v0_10.client import Client
    from tests.support.fixtures import Broker, Connect
    from tests.support.objectstore import ObjectStore

pytestmark = [pytest.mark.broker, pytest.mark.spark]

FIRST, OWNED, LEFT = 40, 50, 30
"""Messages that are finished, that are in the spool only, and that are on the queue, after :meth:`Case.leave_owned`."""


class Place(Protocol):
    """A directory for spools, and what a test may do to the files in it."""

    @property
    def location(self) -> str: ...

    def names(self) -> list[str]: ...

    def read(self, name: str) -> bytes: ...

    def write(self, name: str, content: bytes) -> None: ...

    def delete(self, name: str) -> None: ...


@dataclass
class LocalPlace:
    directory: Path

    @property
    def location(self) -> str:
        return str(self.directory)

    def names(self) -> list[str]:
        return sorted(each.name for each in self.directory.iterdir() if each.name != IDENTITY)

    def read(self, name: str) -> bytes:
        return (self.directory / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        (self.directory / name).write_bytes(content)

    def delete(self, name: str) -> None:
        (self.directory / name).unlink()


@dataclass
class StorePlace:
    store: ObjectStore
    directory: str

    @property
    def location(self) -> str:
        return self.store.url(self.directory)

    def names(self) -> list[str]:
        return [each for each in self.store.names(self.directory) if each != IDENTITY]

    def read(self, name: str) -> bytes:
        with self.store.filesystem().open_input_file(f"{BUCKET}/{self.directory}/{name}") as stream:
            return bytes(stream.read())

    def write(self, name: str, content: bytes) -> None:
        with self.store.filesystem().open_output_stream(f"{BUCKET}/{self.directory}/{name}") as stream:
            stream.write(content)

    def delete(self, name: str) -> None:
        self.store.filesystem().delete_file(f"{BUCKET}/{self.directory}/{name}")


@dataclass
class Case:
    """One query, its queue and its consumerId."""

    driver: QueryProcess
    broker: Broker
    client: Client
    queue: str
    location: str
    directory: Path
    consumer_id: str = field(default_factory=lambda: f"test {uuid.uuid4()}")

    def query(self, how: dict[str, Any] | None = None, **options: str) -> Query:
        """The query; another start of it goes on from the same checkpoint."""
        given = {
            "url": self.broker.url("durable"),
            "username": self.broker.username,
            "password": self.broker.password,
            "queue": self.queue,
            "deliveryGuarantee": "exactly-once",
            "consumerId": self.consumer_id,
            "spoolLocation": self.location,
            "maxMessagesPerTrigger": str(OWNED),
        }
        return Query(
            name=uuid.uuid4().hex,
            options=given | options,
            directory=self.directory,
            schema="body BINARY, position BIGINT",
            sink_options=how or {},
        )

    def publish(self, begin: int, end: int) -> None:
        """Put durable messages into the queue; their bodies say which they are."""
        publish(self.client, self.queue, numbers(end - begin, begin), persistent=True)

    def run(self, **options: str) -> None:
        """Read all that is there."""
        self.driver.drain([self.query(None, **options)])

    def fail(self, how: dict[str, Any] | None = None, **options: str) -> str:
        """Run a query that must fail; what Spark says of it."""
        while True:
            query = self.query(how, **options)
            self.driver.start_query(query, availableNow=True)
            error = self.driver.wait(query)
            assert error is not None
            if not is_slow_start(error):
                return error

    def state(self) -> ConsumerState:
        """The state, when no query holds it."""
        names = Names(CONSUMER, self.consumer_id)
        wait_until(lambda: state_of(self.client, names) is not None, "the state", 60)
        body = state_of(self.client, names)
        assert body is not None
        return ConsumerState.load(body)

    def leave_owned(self, place: Place) -> str:
        """Have a batch that Spark has logged, that is in the spool and nowhere else; the name of its file."""
        self.publish(0, FIRST)
        self.run()
        self.publish(FIRST, FIRST + OWNED + LEFT)
        unlucky = self.query().batches()[-1] + 1
        assert f"batch {unlucky} fails, as it was told to" in self.fail({"fail_batch": unlucky})
        (batch,) = self.state().owned
        assert batch.count == OWNED
        assert place.names() == [batch.file]
        wait_until(lambda: depth(self.client, self.queue) == LEFT, "the session of the query to end", 60)
        return batch.file

    def rows(self) -> list[bytes]:
        """The bodies in the sink, in the order of the batches."""
        return [row["body"] for row in self.query().rows()]

    def nothing_is_left(self, place: Place) -> None:
        """Neither on the broker nor in the spool."""
        assert self.state().owned == ()
        assert place.names() == []
        assert depth(self.client, self.queue) == 0

    def forget(self) -> None:
        """Delete the state."""
        name = Names(CONSUMER, self.consumer_id).state
        if self.client.query_queue(name) is not None:
            self.client.delete_queue(name)


ALL = numbers(FIRST + OWNED + LEFT)


@pytest.fixture(scope="module")
def driver(object_store: ObjectStore, points: CrashPoints) -> Iterator[QueryProcess]:
    """One driver for all tests; the credentials of the object store are in its environment."""
    with QueryProcess(points=points) as driver:
        yield driver


@pytest.fixture
def local(tmp_path: Path) -> LocalPlace:
    return LocalPlace(tmp_path / "spool")


@pytest.fixture
def remote(object_store: ObjectStore, tmp_path: Path) -> StorePlace:
    return StorePlace(object_store, f"{tmp_path.name}/spool")


@pytest.fixture
def network(object_store: ObjectStore) -> Iterator[FaultProxy]:
    """Between a query and the object store."""
    with FaultProxy((HOST, object_store.port), record=False) as proxy:
        yield proxy


@pytest.fixture(params=["local", "remote"])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def case(driver: QueryProcess, broker: Broker, connect: Connect, durable_queue: str, tmp_path: Path) -> Iterator[Case]:
    """A case without a place."""
    case = Case(driver, broker, connect("durable", heartbeat=0), durable_queue, "", tmp_path / "query")
    yield case
    case.forget()


@pytest.mark.sampled("place", every=2)
def test_what_is_in_the_spool_only_is_replayed(case: Case, place: Place) -> None:
    case.location = place.location
    case.leave_owned(place)
    assert case.rows() == ALL[:FIRST]
    case.run()
    assert case.rows() == ALL
    case.nothing_is_left(place)


@pytest.mark.sampled("point", every=3)
@pytest.mark.sampled("point", every=2)
@pytest.mark.parametrize(
    "point", [crashpoints.SPOOL_PARTIAL, crashpoints.SPOOL_SYNCED, crashpoints.SPOOL_RENAMED, crashpoints.TX_COMMITTED]
)
def test_the_reader_is_killed_while_it_spools_to_an_object_store(
    case: Case, remote: StorePlace, points: CrashPoints, point: str
) -> None:
    case.location = remote.location
    case.publish(0, len(ALL))
    query = case.query()
    reader = case.driver.run_to_point(query, point, timeout_s=120, after=1, availableNow=True)
    shown = remote.names()  # of the first batch, and of this one when its put is complete
    case.driver.kill(reader)
    assert case.driver.wait(query) is not None
    points.disarm()
    assert len(shown) == (2 if point in {crashpoints.SPOOL_RENAMED, crashpoints.TX_COMMITTED} else 1)
    case.run()
    assert case.rows() == ALL
    case.nothing_is_left(remote)


@pytest.mark.sampled("place", every=2)
def test_a_lost_file_stops_the_query_until_it_is_back(case: Case, place: Place) -> None:
    case.location = place.location
    file = case.leave_owned(place)
    content = place.read(file)
    place.delete(file)
    for _ in range(2):
        error = case.fail()
        assert f"cannot serve the accepted messages of file {file}, which does not exist" in error
        assert "adoptState=true" in error
    assert len(case.state().owned) == 1
    assert depth(case.client, case.queue) == LEFT
    place.write(file, content)
    case.run()
    assert case.rows() == ALL
    case.nothing_is_left(place)


@pytest.mark.thorough
def test_a_lost_directory_is_given_up_with_adopt_state(case: Case, local: LocalPlace) -> None:
    case.location = local.location
    file = case.leave_owned(local)
    shutil.rmtree(local.directory)
    assert f"file {file}, which does not exist" in case.fail()
    case.run(adoptState="true")
    assert case.rows() == ALL[:FIRST] + ALL[FIRST + OWNED :]
    case.nothing_is_left(local)
    assert f"{OWNED} message(s) of the batch with sequence" in case.driver.log(60_000)
    case.publish(FIRST + OWNED + LEFT, 200)
    case.run()
    assert case.rows() == ALL[:FIRST] + numbers(200)[FIRST + OWNED :]


@pytest.mark.thorough
def test_a_damaged_file(case: Case, place: Place) -> None:
    case.location = place.location
    file = case.leave_owned(place)
    content = place.read(file)
    at = content.index(ALL[FIRST + 7])
    place.write(file, content[:at] + b"X" + content[at + 1 :])
    error = case.fail()
    assert f"file {file}, which is damaged: the checksum of its contents is crc32:" in error
    assert ALL[FIRST + 8].decode() not in error, "no bodies in errors"
    assert len(case.state().owned) == 1
    place.write(file, content)
    case.run()
    assert case.rows() == ALL
    case.nothing_is_left(place)


@pytest.mark.thorough
def test_a_damaged_file_is_given_up_with_adopt_state(case: Case, remote: StorePlace) -> None:
    case.location = remote.location
    file = case.leave_owned(remote)
    content = remote.read(file)
    remote.write(file, content.replace(ALL[FIRST], ALL[0]))
    assert "is damaged" in case.fail()
    case.run(adoptState="true")
    assert case.rows() == ALL[:FIRST] + ALL[FIRST + OWNED :]
    assert remote.names() == [file], "what was given up stays until the next start, for whoever wants to look at it"
    case.publish(FIRST + OWNED + LEFT, 200)
    case.run()
    assert case.rows() == ALL[:FIRST] + numbers(200)[FIRST + OWNED :]
    case.nothing_is_left(remote)


@pytest.mark.thorough
def test_a_store_that_stalls_for_longer_than_the_heartbeat_costs_nothing(
    case: Case, remote: StorePlace, network: FaultProxy
) -> None:
    case.location = remote.store.url(remote.directory, network.port)
    case.publish(0, FIRST)
    query = case.query(None, heartbeat="1", **{"retry.maxAttempts": "0"})
    case.driver.start_query(query)
    wait_until(lambda: len(query.rows()) == FIRST, "the first batch", 120)
    stalled = network.to_broker.stall(times=None)
    case.publish(FIRST, len(ALL))
    assert stalled.struck.wait(60)
    begun = time.monotonic()
    # A session that says nothing is ended after two heartbeats; with no attempt to connect again the query would fail.
    wait_until(lambda: time.monotonic() - begun > 2.5, "more than two heartbeats", 60)
    assert len(query.rows()) == FIRST
    network.clear()
    network.resume()
    wait_until(lambda: len(query.rows()) == len(ALL), "the rest", 120)
    case.driver.stop_query(query)
    assert case.rows() == ALL
    case.run()
    case.nothing_is_left(remote)


@pytest.mark.thorough
def test_a_store_that_goes_away_and_comes_back(case: Case, remote: StorePlace, network: FaultProxy) -> None:
    case.location = remote.store.url(remote.directory, network.port)
    case.publish(0, FIRST)
    query = case.query()
    case.driver.start_query(query)
    wait_until(lambda: len(query.rows()) == FIRST, "the first batch", 120)
    network.refuse()
    network.cut_all()
    case.publish(FIRST, len(ALL))
    error = case.driver.wait(query)
    assert error is not None
    assert "cannot take batch" in error
    assert "none of its messages is accepted, so the broker keeps them" in error
    wait_until(lambda: depth(case.client, case.queue) == len(ALL) - FIRST, "the messages to be back", 60)
    assert "cannot be used" in case.fail()
    network.listen_again()
    case.run()
    assert case.rows() == ALL
    case.nothing_is_left(remote)


def test_a_spool_that_gets_full(case: Case, local: LocalPlace) -> None:
    case.location = local.location
    case.publish(0, FIRST)
    query = case.query()
    case.driver.start_query(query)
    wait_until(lambda: len(query.rows()) == FIRST, "the first batch", 120)
    # More than that cannot be written to any file: the reader's log is smaller, a batch of 50 such messages is not.
    (reader,) = case.driver.readers()
    psutil.Process(reader).rlimit(psutil.RLIMIT_FSIZE, (1_000_000, 1_000_000))
    large = [body + bytes(100_000) for body in ALL[FIRST:]]
    publish(case.client, case.queue, large, persistent=True)
    error = case.driver.wait(query)
    assert error is not None
    assert f"The spool {local.location} cannot take batch" in error
    assert "File too large. Make room there" in error
    assert "none of its messages is accepted, so the broker keeps them" in error
    taken = len(case.rows()) - FIRST
    wait_until(lambda: depth(case.client, case.queue) == len(large) - taken, "the messages to be back", 60)
    assert not [name for name in local.names() if name.endswith(".part")]
    case.run()
    assert case.rows() == ALL[:FIRST] + large
    case.nothing_is_left(local)


@pytest.mark.thorough
@pytest.mark.sampled("place", every=2)
def test_two_consumers_cannot_share_a_spool(case: Case, place: Place, tmp_path: Path) -> None:
    case.location = place.location
    file = case.leave_owned(place)
    other = Case(case.driver, case.broker, case.client, case.queue, place.location, tmp_path / "other")
    error = other.fail()
    assert f"belongs to consumer '{case.consumer_id}', not to '{other.consumer_id}'" in error
    assert "Give each consumerId its own spoolLocation" in error
    assert place.names() == [file]
    assert depth(case.client, case.queue) == LEFT
    case.run()
    assert case.rows() == ALL
    case.nothing_is_left(place)
    case.publish(0, FIRST)
    other.location = str(tmp_path / "a place of its own")
    other.run()
    assert other.rows() == ALL[:FIRST]
    other.forget()


@pytest.mark.thorough
def test_a_place_that_cannot_be_a_spool(case: Case, object_store: ObjectStore, local: LocalPlace) -> None:
    case.publish(0, FIRST)
    (local.directory.parent / "file").write_text("mine")
    case.location = str(local.directory.parent / "file")
    assert "file cannot be used: Not a directory. Set spoolLocation to a directory" in case.fail()
    case.location = object_store.url("spool").replace(f"s3://{BUCKET}", "s3://missing")
    error = case.fail()
    assert "The spool s3://missing/spool cannot be used: Bucket 'missing' not found" in error
    local.directory.mkdir()
    local.write(IDENTITY, b'{"version": 2}')
    case.location = local.location
    assert "of version 2, but this amqp_spark knows version 1" in case.fail()
    assert depth(case.client, case.queue) == FIRST
    local.delete(IDENTITY)
    case.run()
    assert case.rows() == ALL[:FIRST]
    case.nothing_is_left(local)


@pytest.mark.thorough
def test_the_spool_has_moved(case: Case, local: LocalPlace, tmp_path: Path) -> None:
    case.location = local.location
    case.leave_owned(local)
    moved = LocalPlace(tmp_path / "moved")
    local.directory.rename(moved.directory)
    case.location = moved.location
    error = case.fail()
    assert local.location in error
    assert moved.location in error
    assert "adoptState=true" in error
    case.run(adoptState="true")
    assert case.rows() == ALL
    case.nothing_is_left(moved)
