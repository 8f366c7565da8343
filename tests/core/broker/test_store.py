"""The store: what is durable comes back as it was, and nothing else does."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqp_core.broker.model.branches import Outcome, Xid
from amqp_core.broker.model.dead_letters import ALTERNATE
from amqp_core.broker.model.errors import Refused
from amqp_core.broker.model.messages import Message
from amqp_core.broker.store.arguments import dumps, loads
from amqp_core.broker.store.database import StoreError
from amqp_core.broker.store.store import Store
from amqp_core.typed_values import Datetime, Typed
from tests.core.broker.model_support import ME, FixedWire, Sink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqp_core.broker.model.entries import Entry
    from amqp_core.broker.model.virtual_host import VirtualHost

WIRE = FixedWire()


def open_store(path: Path, now: float = 0.0) -> Store:
    return Store(path, {"test": WIRE}, now=now)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "broker.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    opened = open_store(path)
    yield opened
    opened.close()


def again(store: Store, path: Path, now: float = 0.0) -> Store:
    """The store as the next process finds it: what is not committed is gone."""
    store.close()
    return open_store(path, now)


def send(host: VirtualHost, body: bytes, key: str = "q", exchange: str = "", *, persistent: bool = True) -> None:
    host.publish(Message(WIRE, exchange, key, b"header", body, persistent=persistent, priority=3), now=0)


class Waiting(NamedTuple):
    """A message in a queue."""

    body: bytes
    sequence: int
    returns: int
    deaths: int


def waiting(host: VirtualHost, queue: str = "q") -> list[Waiting]:
    """All that waits; it still waits afterwards."""
    entries = []
    while (entry := host.get(queue, owner=ME)) is not None:
        entries.append(entry)
    host.release(entries, delivered=False)
    return [
        Waiting(each.message.body, each.sequence, each.returns, sum(death.count for death in each.message.deaths))
        for each in entries
    ]


def test_what_is_durable_comes_back_and_nothing_else(store: Store, path: Path) -> None:
    host = store.host("h")
    host.declare_queue("q", owner=ME, durable=True, auto_delete=True, arguments={"x-max-priority": 9})
    host.declare_queue("transient", owner=ME)
    host.declare_queue("mine", owner=ME, durable=True, exclusive=True)
    host.declare_queue("kept", owner=ME, durable=True, exclusive=True, outlives_owner=True)
    host.declare_exchange("x", "topic", durable=True, alternate="y", internal=True)
    host.declare_exchange("y", "fanout")
    host.bind_queue("q", "amq.topic", "a.#", owner=ME)
    host.bind_queue("q", "y", "", owner=ME)
    host.bind_queue("transient", "amq.topic", "#", owner=ME)
    host.bind_exchange("x", "amq.headers", "", arguments={"x-match": "any", "n": 1})
    for number, persistent in enumerate((True, False, True)):
        send(host, b"%d" % number, persistent=persistent)
        send(host, b"t%d" % number, "transient", persistent=persistent)
    store.commit()
    found = again(store, path).hosts["h"]
    assert set(found.queues) == {"q", "kept"}
    queue = found.queues["q"]
    assert (queue.durable, queue.auto_delete, queue.exclusive) == (True, True, None)
    assert queue.arguments == {"x-max-priority": 9}
    assert queue.settings.max_priority == 9
    assert found.queues["kept"].exclusive is None, "its owner is gone"
    exchange = found.exchanges["x"]
    assert (exchange.kind, exchange.durable, exchange.internal, exchange.alternate) == ("topic", True, True, "y")
    assert "y" not in found.exchanges
    assert [(each.source.name, each.key) for each in queue.incoming] == [("amq.topic", "a.#")]
    assert [each.arguments for each in exchange.incoming] == [{"x-match": "any", "n": 1}]
    assert [each.body for each in waiting(found)] == [b"0", b"2"]
    entry = found.get("q", owner=ME)
    assert entry is not None
    assert entry.redelivered, "the process before may have delivered it"
    message = entry.message
    assert (message.header, message.routing_key, message.priority, message.persistent) == (b"header", "q", 3, True)


def test_a_routing_key_that_is_not_utf_8_comes_back(store: Store, path: Path) -> None:
    key = b"k\xff".decode("utf-8", "surrogateescape")
    host = store.host("h")
    host.declare_queue("q", owner=ME, durable=True)
    host.bind_queue("q", "amq.topic", "#", owner=ME)
    send(host, b"1", key, "amq.topic")
    store.commit()
    entry = again(store, path).hosts["h"].get("q", owner=ME)
    assert entry is not None
    assert entry.message.routing_key == key


def test_nothing_is_kept_that_was_not_committed(store: Store, path: Path) -> None:
    host = store.host("h")
    host.declare_queue("q", owner=ME, durable=True)
    send(host, b"1")
    store.commit()
    send(host, b"2")
    host.purge_queue("q", owner=ME)
    assert [each.body for each in waiting(again(store, path).hosts["h"])] == [b"1"]


def test_what_is_held_comes_back_to_its_place(store: Store, path: Path) -> None:
    host = store.host("h")
    host.declare_queue("q", owner=ME, durable=True)
    for number in range(4):
        send(host, b"%d" % number)
    first, second = (host.get("q", owner=ME) for _ in range(2))
    assert first is not None
    assert second is not None
    host.release([second])
    host.accept([first])
    host.get("q", owner=ME)
    store.commit()
    assert waiting(again(store, path).hosts["h"]) == [
        Waiting(b"1", 2, 1, 0),
        Waiting(b"2", 3, 0, 0),
        Waiting(b"3", 4, 0, 0),
    ]


def test_a_message_in_several_queues_is_written_once(store: Store, path: Path) -> None:
    host = store.host("h")
    for name in ("a", "b", "c"):
        host.declare_queue(name, owner=ME, durable=True)
        host.bind_queue(name, "amq.fanout", "", owner=ME)
    send(host, b"1", exchange="amq.fanout")
    store.commit()
    assert rows(path, "messages") == 1
    for count in (1, 1, 0):
        queue = next(name for name in host.queues if host.queues[name].message_count)
        host.purge_queue(queue, owner=ME)
        store.commit()
        assert rows(path, "messages") == count
        store = again(store, path)
        host = store.hosts["h"]
    store.close()


def rows(path: Path, table: str) -> int:
    """Rows of a table; a copy is read, since the store locks its own file."""
    with TemporaryDirectory() as place:
        for each in path.parent.glob(path.name + "*"):
            (Path(place) / each.name).write_bytes(each.read_bytes())
        connection = sqlite3.connect(Path(place) / path.name)
        try:
            return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
        finally:
            connection.close()


def test_a_deleted_queue_leaves_nothing_behind(store: Store, path: Path) -> None:
    host = store.host("h")
    host.declare_queue("q", owner=ME, durable=True)
    host.bind_queue("q", "amq.topic", "#", owner=ME)
    for number in range(3):
        send(host, b"%d" % number)
    held = host.get("q", owner=ME)
    assert held is not None
    host.delete_queue("q", owner=ME)
    host.declare_queue("q", owner=ME, durable=True)
    store.commit()
    assert rows(path, "entries") == 1, "what is held is removed when it is settled"
    store = again(store, path)
    assert waiting(store.hosts["h"]) == []
    assert not store.hosts["h"].queues["q"].incoming
    assert rows(path, "entries") == rows(path, "messages") == 0
    store.close()


def with_alternate(store: Store) -> VirtualHost:
    """A virtual host with three messages in the queue "q", of which "dead" gets the orphans."""
    host = store.host("h")
    host.declare_queue("dead", owner=ME, durable=True)
    host.bind_queue("dead", "amq.fanout", "", owner=ME)
    alternate = {ALTERNATE: "amq.fanout", "x-dead-letter-exchange": "amq.fanout"}
    host.declare_queue("q", owner=ME, durable=True, arguments=alternate)
    for number in range(3):
        send(host, b"%d" % number)
    return host


def test_orphans_are_written_where_they_go(store: Store, path: Path) -> None:
    host = with_alternate(store)
    held = host.get("q", owner=ME)
    assert held is not None
    store.commit()
    host.delete_queue("q", owner=ME)
    host.release([held])
    store.commit()
    assert rows(path, "entries") == rows(path, "messages") == 3
    found = again(store, path).hosts["h"]
    assert "q" not in found.queues
    assert [each.body for each in waiting(found, "dead")] == [b"1", b"2", b"0"]


@pytest.mark.parametrize("end", ["killed", "killed in a branch", "settled"])
def test_what_is_held_of_a_deleted_queue_is_an_orphan_after_a_restart(store: Store, path: Path, end: str) -> None:
    host = with_alternate(store)
    held = [host.get("q", owner=ME), host.get("q", owner=ME)]
    entries = [each for each in held if each is not None]
    xid = Xid(1, b"g", b"b")
    if end == "killed in a branch":
        branch, _ = host.branches.start(xid, ME, join=False, now=0)
        host.branches.accept(branch, entries)
        host.branches.end(xid, ME, fail=False, suspend=False, now=0)
        host.branches.prepare(xid, 0)
    host.delete_queue("q", owner=ME)
    host.declare_queue("q", owner=ME, durable=True)
    store.commit()
    assert rows(path, "queues") == 3
    if end == "settled":
        host.accept(entries)
        store.commit()
        assert rows(path, "queues") == 2
    for _ in range(2):  # also what is not decided when the second process ends
        store = again(store, path)
    found = store.hosts["h"]
    if end == "killed in a branch":
        assert rows(path, "queues") == 3
        found.branches.rollback(xid)
        store.commit()
    assert rows(path, "queues") == 2
    assert waiting(found) == []
    orphans = [] if end == "settled" else [b"0", b"1"]
    assert [each.body for each in waiting(found, "dead")] == [b"2", *orphans]
    assert rows(path, "entries") == rows(path, "messages") == 1 + len(orphans)
    store.close()


def test_dead_letters_keep_their_history_and_expire_in_time(store: Store, path: Path) -> None:
    host = store.host("h")
    host.declare_queue("dead", owner=ME, durable=True)
    arguments = {"x-message-ttl": 1000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    host.declare_queue("q", owner=ME, durable=True, arguments=arguments)
    send(host, b"rejected")
    entry = host.get("q", owner=ME)
    assert entry is not None
    host.reject([entry], now=0)
    send(host, b"expires")
    store.commit()
    found = again(store, path, now=0.5).hosts["h"]
    assert found.next_expiry == 1.0
    found.expire(1.0)
    assert [(each.body, each.deaths) for each in waiting(found, "dead")] == [(b"rejected", 1), (b"expires", 1)]


@pytest.mark.parametrize("ttl_ms", [(1 << 63) - 1, (1 << 64) - 1, 10**250])
def test_a_time_to_live_of_any_length_can_be_stored(store: Store, path: Path, ttl_ms: int) -> None:
    store.host("/").declare_queue("q", owner=ME, durable=True, now=0)
    store.host("/").publish(Message(WIRE, "", "q", b"", b"1", persistent=True, priority=0, ttl_ms=ttl_ms), now=0)
    store.commit()
    store = again(store, path, now=1e9)
    assert [each.body for each in waiting(store.host("/"))] == [b"1"]
    store.close()


def test_a_prepared_branch_outlives_the_process(store: Store, path: Path) -> None:
    host = store.host("h")
    host.declare_queue("q", owner=ME, durable=True)
    for number in range(3):
        send(host, b"%d" % number)
    xid = Xid(1, b"global", b"branch")
    accepted = host.get("q", owner=ME)
    assert accepted is not None
    branch, _ = host.branches.start(xid, ME, join=False, now=0)
    host.branches.accept(branch, [accepted])
    message = Message(WIRE, "", "q", b"", b"new")
    branch.publish(message, host.route(message))
    host.branches.end(xid, ME, fail=False, suspend=False, now=0)
    assert host.branches.prepare(xid, 0) is Outcome.OK
    store.commit()
    store = again(store, path)
    host = store.hosts["h"]
    found = host.branches.by_xid[xid]
    assert [(each.body, [queue.name for queue in queues]) for each, queues in found.published] == [(b"new", ["q"])]
    assert [each.message.body for each in found.accepted] == [b"0"]
    assert [each.body for each in waiting(host)] == [b"1", b"2"]
    assert host.branches.commit(xid, 0, one_phase=False) is Outcome.OK
    store.commit()
    store = again(store, path)
    assert not store.hosts["h"].branches.by_xid
    assert [each.body for each in waiting(store.hosts["h"])] == [b"1", b"2"]  # the new one is transient
    assert rows(path, "branches") == rows(path, "branch_messages") == rows(path, "branch_entries") == 0
    assert rows(path, "messages") == 2
    store.close()


def test_the_messages_of_a_prepared_branch_count_for_the_memory_limit_after_a_restart(store: Store, path: Path) -> None:
    host = store.host("h")
    host.declare_queue("q", owner=ME, durable=True)
    xid = Xid(1, b"global", b"branch")
    branch, _ = host.branches.start(xid, ME, join=False, now=0)
    message = Message(WIRE, "", "q", b"", bytes(1000), persistent=True)
    host.memory.admit(message)
    counted = host.memory.used
    branch.publish(message, host.route(message))
    host.branches.end(xid, ME, fail=False, suspend=False, now=0)
    assert host.branches.prepare(xid, 0) is Outcome.OK
    store.commit()
    with closing(again(store, path)) as following:
        host = following.hosts["h"]
        assert host.memory.uncommitted.nbytes == counted > 1000
        assert host.branches.commit(xid, 0, one_phase=False) is Outcome.OK
        assert (host.memory.uncommitted.nbytes, host.memory.queued.nbytes > counted) == (0, True)


def prepared(host: VirtualHost, xid: Xid, *, accept: bool) -> None:
    """Prepare a branch that accepts a message of q, or publishes one to it."""
    branch, _ = host.branches.start(xid, ME, join=False, now=0)
    if accept:
        entry = host.get("q", owner=ME)
        assert entry is not None
        host.branches.accept(branch, [entry])
    else:
        message = Message(WIRE, "", "q", b"", b"secret", persistent=True)
        branch.publish(message, host.route(message))
    host.branches.end(xid, ME, fail=False, suspend=False, now=0)
    assert host.branches.prepare(xid, 0) is Outcome.OK


@pytest.mark.parametrize("accept", [True, False])
def test_a_branch_has_nothing_to_do_with_a_queue_that_comes_after_its_own(
    store: Store, path: Path, accept: bool
) -> None:
    """The ids of a queue and its messages, which were deleted while the branch was prepared, are given again."""
    host = store.host("h")
    host.declare_queue("q", owner=ME, durable=True)
    send(host, b"1")
    xid = Xid(1, b"g", b"b")
    prepared(host, xid, accept=accept)
    host.delete_queue("q", owner=ME)
    store.commit()
    store = again(store, path)
    host = store.hosts["h"]
    host.declare_queue("other", owner=ME, durable=True)
    send(host, b"innocent", key="other")
    store.commit()
    store = again(store, path)
    host = store.hosts["h"]
    assert [each.body for each in waiting(host, "other")] == [b"innocent"]
    assert host.branches.commit(xid, 0, one_phase=False) is Outcome.OK
    store.commit()
    store = again(store, path)
    assert [each.body for each in waiting(store.hosts["h"], "other")] == [b"innocent"]
    store.close()


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8"))
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.uuids()
    | st.integers().map(Datetime)
    | st.builds(Typed, st.integers(0, 255), st.integers()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), values))
def test_arguments_come_back_with_their_types(arguments: dict[str, object]) -> None:
    found = loads(dumps(arguments))
    assert found == arguments
    assert str(found) == str(arguments), "with the same types"


@pytest.mark.parametrize("value", [UUID(int=1), Decimal("1.10"), Datetime(5), 2**70, float("inf"), Typed(1, b"x")])
def test_rare_arguments(value: object) -> None:
    [found] = loads(dumps({"a": value})).values()
    assert (found, type(found)) == (value, type(value))


operations = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "fanout", "get", "accept", "release", "reject", "purge", "commit", "restart"]),
        st.integers(0, 2),
        st.booleans(),
    ),
    max_size=40,
)


@settings(max_examples=60)
@given(operations)
def test_any_history_comes_back(history: list[tuple[str, int, bool]]) -> None:
    with TemporaryDirectory() as place:
        path = Path(place) / "broker.db"
        store = open_store(path)
        host = store.host("h")
        for name, arguments in (("0", {}), ("1", {"x-max-length": 3}), ("2", {"x-dead-letter-exchange": "amq.fanout"})):
            host.declare_queue(name, owner=ME, durable=True, arguments=arguments)
            host.bind_queue(name, "amq.fanout", "", owner=ME)
        store.commit()
        held: list[Entry] = []
        for number, (what, index, flag) in enumerate(history):
            name = str(index)
            if what in ("send", "fanout"):
                exchange = "amq.fanout" if what == "fanout" else ""
                send(host, b"%d" % number, name, exchange, persistent=flag)
            elif what == "get" and (entry := host.get(name, owner=ME)) is not None:
                held.append(entry)
            elif what == "accept" and held:
                host.accept([held.pop(index % len(held))])
            elif what == "release" and held:
                host.release([held.pop(index % len(held))], delivered=flag)
            elif what == "reject" and held:
                host.reject([held.pop(index % len(held))], now=0)
            elif what == "purge":
                host.purge_queue(name, owner=ME)
            elif what == "commit":
                store.commit()
            elif what == "restart":
                store, host, held = restarted(store, path, host, held)
        store, host, held = restarted(store, path, host, held)
        for name in "012":
            host.purge_queue(name, owner=ME)
        store.commit()
        store.close()
        assert rows(path, "messages") == rows(path, "entries") == 0


def restarted(store: Store, path: Path, host: VirtualHost, held: list[Entry]) -> tuple[Store, VirtualHost, list[Entry]]:
    """Commit, compare with what the next process finds, and go on there."""
    host.release(held, delivered=False)
    store.commit()
    expected = {name: persistent(host, name) for name in "012"}
    following = again(store, path)
    found = following.hosts["h"]
    assert {name: waiting(found, name) for name in "012"} == expected
    return following, found, []


def persistent(host: VirtualHost, queue: str) -> list[Waiting]:
    """What waits and is persistent; the rest is dropped."""
    found = waiting(host, queue)
    kept = []
    for each in found:
        entry = host.get(queue, owner=ME)
        assert entry is not None
        if entry.message.persistent:
            kept.append(each)
        host.accept([entry]) if not entry.message.persistent else None
    return kept


def test_a_consumer_without_acks_takes_a_message_for_good(store: Store, path: Path) -> None:
    host = store.host("h")
    host.declare_queue("q", owner=ME, durable=True)
    host.consume("q", Sink(2), owner=ME, no_ack=True).queue.ready()
    for number in range(3):
        send(host, b"%d" % number)
    store.commit()
    assert rows(path, "messages") == 1
    assert [each.body for each in waiting(again(store, path).hosts["h"])] == [b"2"]


def test_the_mark_of_a_deleted_queue_is_for_the_store_alone(store: Store) -> None:
    with pytest.raises(Refused, match=r"'amqp_core.deleted' is reserved"):
        store.host("h").declare_queue("q", owner=ME, durable=True, arguments={"amqp_core.deleted": True})


def test_messages_in_the_file_are_not_for_all_users_to_read(store: Store, path: Path) -> None:
    store.host("h").declare_queue("q", owner=ME, durable=True)
    store.commit()
    assert {each.stat().st_mode & 0o077 for each in path.parent.glob(f"{path.name}*")} == {0}


def test_a_store_that_this_process_has_open_is_in_use_however_often_it_is_opened(store: Store, path: Path) -> None:
    store.host("h").declare_queue("q", owner=ME, durable=True)
    store.commit()
    code = (
        "from amqp_core.broker.store.database import Database; import pathlib, sys; Database(pathlib.Path(sys.argv[1]))"
    )
    for _ in range(2):
        with pytest.raises(StoreError, match="AMQP_STORE_IN_USE"):
            open_store(path)
        other = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=False)
        assert "AMQP_STORE_IN_USE" in other.stderr


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("UPDATE queues SET arguments = '[]'", "AttributeError"),
        ("""UPDATE queues SET arguments = '{"table": [["x", {"decimal": "?"}]]}'""", "InvalidOperation"),
        ("PRAGMA writable_schema = ON; UPDATE sqlite_schema SET name = CAST(x'80' AS TEXT)", "not UTF-8"),
    ],
)
def test_whatever_is_damaged_is_an_error_of_the_store(store: Store, path: Path, statement: str, text: str) -> None:
    store.host("h").declare_queue("q", owner=ME, durable=True)
    store.commit()
    store.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(statement)
    with pytest.raises(StoreError, match=f"AMQP_STORE_DAMAGED.*{text}.*Restore a copy"):
        open_store(path)


@pytest.mark.parametrize("kind", [UnicodeEncodeError, MemoryError, RuntimeError])
def test_whatever_goes_wrong_in_a_commit_nothing_is_committed_any_more(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    """The memory is ahead of the file, and the changes are lost: a later commit must not seem to have written them."""
    host = store.host("h")
    host.declare_queue("q", owner=ME, durable=True)
    store.commit()
    if kind is UnicodeEncodeError:
        host.declare_queue("\ud800", owner=ME, durable=True)  # half of a surrogate pair, which SQLite cannot write
    else:

        def fail(_: object) -> None:
            raise kind("seen in the test")

        send(host, b"lost")
        monkeypatch.setattr(store._database, "commit", fail)
    with pytest.raises(StoreError, match=r"AMQP_STORE_UNUSABLE.*Check its disk") as caught:
        store.commit()
    assert isinstance(caught.value.__cause__, kind)
    monkeypatch.undo()
    send(host, b"later")
    assert store.is_behind
    with pytest.raises(StoreError) as again_caught:
        store.commit()
    assert str(again_caught.value) == str(caught.value)
    assert waiting(again(store, path).hosts["h"]) == []


def test_what_consumers_held_counts_for_the_limit_of_a_queue_that_drops_when_it_waits_again(
    store: Store, path: Path
) -> None:
    """As when they give it back: until the next publish the queue would be longer than it may be."""
    host = store.host("h")
    host.declare_queue("dead", owner=ME, durable=True)
    arguments = {"x-max-length": 2, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    host.declare_queue("q", owner=ME, durable=True, arguments=arguments)
    for number in range(5):
        send(host, b"%d" % number)
        if number < 3:
            host.get("q", owner=ME)
    store.commit()
    following = again(store, path)
    found = following.hosts["h"]
    assert {name: queue.message_count for name, queue in found.queues.items()} == {"dead": 3, "q": 2}
    found = again(following, path).hosts["h"]
    assert [each.body for each in waiting(found, "dead")] == [b"0", b"1", b"2"]
    assert [each.body for each in waiting(found)] == [b"3", b"4"]
