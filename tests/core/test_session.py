"""The session machine: two of them wired to each other, ids near the wrap, completion in both directions."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import pytest

from amqp_core.blocks import Block
from amqp_core.errors import (
    CommandFailed,
    DecodeError,
    EncodeError,
    NotFound,
    NotImplementedByPeer,
    ProtocolError,
    SessionDetached,
    UnknownError,
    UsageError,
)
from amqp_core.v0_10 import spec
from amqp_core.v0_10._codec import decode_command
from amqp_core.v0_10.session import COMPLETE_EVERY, TRANSITIONS, Session, SessionState

if TYPE_CHECKING:
    from collections.abc import Sequence

WRAP = 1 << 32


class Wire:
    """Keeps what a session sends."""

    def __init__(self) -> None:
        self.sent: list[spec.Control | tuple[spec.Command, bool, dict[int, bytes]]] = []

    def send_control(self, channel: int, control: spec.Control) -> None:
        assert channel == 3
        self.sent.append(control)

    def send_assembly(self, channel: int, segments: Sequence[tuple[int, bytes]]) -> None:
        assert channel == 3
        command, sync = decode_command(segments[0][1])
        self.sent.append((command, sync, dict(segments[1:])))


class Side:
    """A session with its wire."""

    def __init__(self, first_id: int = 0) -> None:
        self.wire = Wire()
        self.session = Session(self.wire, 3, b"name", first_id=first_id)

    def take(self) -> list[spec.Control | tuple[spec.Command, bool, dict[int, bytes]]]:
        sent, self.wire.sent = self.wire.sent, []
        return sent

    def give(self, sent: Sequence[spec.Control | tuple[spec.Command, bool, dict[int, bytes]]]) -> None:
        for item in sent:
            if isinstance(item, tuple):
                self.session.receive_command(item[0], sync=item[1])
            else:
                self.session.receive_control(item)


def pump(a: Side, b: Side) -> None:
    while a.wire.sent or b.wire.sent:
        b.give(a.take())
        a.give(b.take())


def attached(first_id: int = 0) -> tuple[Session, Session, Side, Side]:
    ours, theirs = Side(first_id), Side(first_id)
    ours.session.attach()
    pump(ours, theirs)
    assert ours.session.state is SessionState.ATTACHED
    assert theirs.session.state is SessionState.ATTACHED
    return ours.session, theirs.session, ours, theirs


def at(state: SessionState) -> Side:
    side = Side()
    if state is SessionState.NEW:
        return side
    side.session.attach()
    if state is not SessionState.ATTACHING:
        side.session.receive_control(spec.SessionAttached(name=b"name"))
    if state in (SessionState.DETACHING, SessionState.DETACHED):
        side.session.detach()
    if state is SessionState.DETACHED:
        side.session.receive_control(spec.SessionDetached(name=b"name", code=0))
    side.take()
    assert side.session.state is state
    return side


def block(count: int) -> Block:
    return Block(b"x" * count, array("I", range(1, count + 1)))


# ------------------------------------------------------------------------------------------------------------- states
ATTACH_CONTROLS = (spec.SessionAttach, spec.SessionAttached, spec.SessionDetach, spec.SessionDetached)


@pytest.mark.parametrize(
    "cls", [cls for cls in spec.CONTROL_TYPES.values() if cls.CODE >> 8 == 2], ids=lambda c: c.NAME
)
@pytest.mark.parametrize("state", SessionState, ids=lambda state: state.name.lower())
def test_a_control_leads_where_the_table_says_or_is_refused(state: SessionState, cls: type[spec.Control]) -> None:
    side = at(state)
    session = side.session
    expected = TRANSITIONS.get((state, cls))
    if expected is not None:
        session.receive_control(cls())
        assert session.state is expected
    elif cls in ATTACH_CONTROLS or state in (SessionState.NEW, SessionState.ATTACHING):
        with pytest.raises(ProtocolError, match=cls.NAME):
            session.receive_control(cls())
        assert session.state is state
    else:
        session.receive_control(cls())
        assert session.state is state
        if state is SessionState.DETACHED:
            assert side.take() == []


@pytest.mark.parametrize("state", SessionState, ids=lambda state: state.name.lower())
def test_commands_belong_into_an_attached_session(state: SessionState) -> None:
    side = at(state)
    if state in (SessionState.ATTACHED, SessionState.DETACHING):
        assert side.session.receive_command(spec.ExecutionSync(), sync=False) == 0
        side.session.receive_block(block(3))
    else:
        with pytest.raises(ProtocolError, match=r"execution\.sync arrived while the session is"):
            side.session.receive_command(spec.ExecutionSync(), sync=False)
        with pytest.raises(ProtocolError, match=r"message\.transfer arrived while the session is"):
            side.session.receive_block(block(3))
    if state in (SessionState.ATTACHED, SessionState.ATTACHING):
        assert side.session.send(spec.TxSelect()) == 0
    else:
        with pytest.raises(UsageError, match="takes no commands"):
            side.session.send(spec.TxSelect())
    if state is not SessionState.NEW:
        with pytest.raises(UsageError, match="cannot be attached again"):
            side.session.attach()


@pytest.mark.parametrize("state", SessionState, ids=lambda state: state.name.lower())
def test_an_unknown_command_is_answered_where_commands_belong(state: SessionState) -> None:
    side = at(state)
    if state in (SessionState.ATTACHED, SessionState.DETACHING):
        with pytest.raises(DecodeError, match=r"unknown command 0x090b\."):
            side.session.refuse_command(0x090B)
    else:
        with pytest.raises(ProtocolError, match="unknown command 0x090b arrived while the session is"):
            side.session.refuse_command(0x090B)
    exception = spec.ExecutionException(
        error_code=540, command_id=0, class_code=9, command_code=11, description="unknown command 0x090b"
    )
    answer = [(exception, False, {}), spec.SessionDetach(name=b"name")]
    assert side.take() == (answer if state is SessionState.ATTACHED else [])


def test_an_unknown_command_is_named_by_its_id_and_not_completed() -> None:
    ours, theirs, us, them = attached(WRAP - 1)
    theirs.send(spec.TxSelect(), sync=True)
    pump(us, them)
    assert theirs.number(1) == WRAP  # the command that is not known to us
    with pytest.raises(DecodeError):
        ours.refuse_command(0x6301)
    pump(us, them)
    assert theirs.is_complete(WRAP - 1)
    assert not theirs.is_complete(WRAP)
    assert isinstance(theirs.error, NotImplementedByPeer)
    assert theirs.error.command_id == WRAP
    assert (ours.state, theirs.state) == (SessionState.DETACHED, SessionState.DETACHED)


def test_a_session_that_has_failed_answers_no_unknown_command() -> None:
    side = at(SessionState.ATTACHED)
    side.session.receive_command(spec.ExecutionException(error_code=404, description="gone"), sync=False)
    with pytest.raises(DecodeError):
        side.session.refuse_command(0x090B)
    assert side.take() == []


def test_attach_tells_the_point_before_any_command() -> None:
    side = Side(first_id=WRAP - 1)
    side.session.attach(force=True)
    assert side.take() == [
        spec.SessionAttach(name=b"name", force=True),
        spec.SessionCommandPoint(command_id=0xFFFFFFFF, command_offset=0),
    ]


@pytest.mark.parametrize(
    ("state", "control", "code"),
    [
        (SessionState.ATTACHING, spec.SessionDetached(name=b"name", code=1), 1),
        (SessionState.ATTACHED, spec.SessionDetached(name=b"name", code=2), 2),
        (SessionState.ATTACHED, spec.SessionDetach(name=b"name"), 0),
    ],
)
def test_a_detach_that_we_did_not_ask_for_is_an_error(state: SessionState, control: spec.Control, code: int) -> None:
    side = at(state)
    side.session.receive_control(control)
    assert side.session.state is SessionState.DETACHED
    with pytest.raises(SessionDetached, match=f"code {code}"):
        side.session.check()
    with pytest.raises(SessionDetached):
        side.session.send(spec.TxSelect())
    answer = [spec.SessionDetached(name=b"name", code=0)] if isinstance(control, spec.SessionDetach) else []
    assert side.take() == answer


def test_both_sides_detach_at_once() -> None:
    ours, theirs, a, b = attached()
    ours.detach()
    theirs.detach()
    pump(a, b)
    assert (ours.state, theirs.state) == (SessionState.DETACHED, SessionState.DETACHED)
    ours.check()
    theirs.check()


# --------------------------------------------------------------------------------------------------------- completion
@pytest.mark.parametrize("first", [0, WRAP - 3, WRAP, 5 * WRAP - 2])
def test_a_call_is_answered_and_completed_over_the_wrap(first: int) -> None:
    ours, theirs, a, b = attached(first)
    for number in range(8):
        command_id = ours.send(spec.QueueQuery(queue="q"), sync=True, result=True)
        assert command_id == first + number
        assert not ours.is_complete(command_id)
        result = spec.QueueQueryResult(queue=str(number))
        theirs.send(spec.ExecutionResult(command_id=command_id % WRAP, value=result))
        pump(a, b)
        assert ours.is_complete(command_id)
        assert ours.completed.covers(first, command_id)
        assert ours.take_result(command_id) == result
        assert ours.results == {}
        ours.forget_names(command_id + 1)
    assert ours.incomplete() == 0
    assert (ours.next_id, theirs.received_next, ours.received_next) == (first + 8,) * 3


def test_results_without_a_waiting_call_are_not_kept() -> None:
    ours, theirs, a, b = attached()
    ours.send(spec.QueueQuery(queue="q"), sync=True)
    assert ours.take_result(ours.send(spec.QueueQuery(queue="q"), result=True)) is None
    for command_id in (0, 1, 2, 77):
        theirs.send(spec.ExecutionResult(command_id=command_id, value=spec.QueueQueryResult()))
    pump(a, b)
    assert ours.results == {}


def test_sets_of_completed_commands_are_united() -> None:
    ours, _, _, _ = attached()
    for _ in range(10):
        ours.send(spec.TxSelect())
    for low, high in ((4, 6), (0, 1), (8, 20)):
        ours.receive_control(spec.SessionCompleted(commands=[(low, high)]))
    assert [ours.is_complete(command_id) for command_id in range(11)] == [
        *(True, True, False, False, True, True, True, False, True, True, False)
    ]  # 10 was never sent
    assert ours.incomplete() == 3
    assert not ours.completed.covers(0, 2)
    with pytest.raises(ProtocolError, match="from 5 to 4 ends before"):
        ours.receive_control(spec.SessionCompleted(commands=[(5, 4)]))
    assert not ours.is_complete(7)


def test_ids_before_the_first_cannot_be_completed() -> None:
    ours, _, _, _ = attached(100)
    ours.send(spec.TxSelect())
    ours.send(spec.TxSelect())
    ours.receive_control(spec.SessionCompleted(commands=[(0, 100)]))
    assert ours.incomplete() == 1
    assert not ours.is_complete(99)


@pytest.mark.parametrize("timely", [False, True])
def test_what_the_peer_completed_is_known(timely: bool) -> None:
    side = at(SessionState.ATTACHED)
    for _ in range(3):
        side.session.send(spec.TxSelect())
    side.take()
    side.session.receive_control(spec.SessionCompleted(commands=[(0, 2)], timely_reply=timely))
    assert side.take() == [spec.SessionKnownCompleted(commands=[(0, 2)])]


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (
            spec.MessageTransfer(destination="x", acquire_mode=0),
            r"message\.transfer cannot be sent without accept-mode,",
        ),
        (spec.QueueDeclare(), r"queue\.declare cannot be sent without queue, which is required"),
        (spec.DtxStart(), r"dtx\.start cannot be sent without xid"),
        (spec.DtxStart(xid=spec.Xid(format=1, global_id=b"g")), r"dtx\.xid cannot be sent without branch-id"),
    ],
)
def test_a_command_is_not_sent_without_its_required_fields(command: spec.Command, text: str) -> None:
    side = at(SessionState.ATTACHED)
    with pytest.raises(EncodeError, match=text):
        side.session.send(command)
    assert side.take() == []
    assert side.session.next_id == 0
    side.session.send(spec.ExchangeBound(exchange="e"))  # any queue at all: a question that brokers answer


def test_nothing_is_answered_once_the_session_ends() -> None:
    side = at(SessionState.DETACHING)
    side.session.receive_control(spec.SessionCompleted(commands=[], timely_reply=True))
    assert side.take() == []


def test_a_transfer_that_asks_for_its_completion_gets_it_at_once() -> None:
    side = at(SessionState.ATTACHED)
    asking = block(2)
    asking.sync = True
    side.session.receive_block(block(1))
    assert side.take() == []
    side.session.receive_block(asking)
    assert side.take() == [spec.SessionCompleted(commands=[(0, 2)], timely_reply=False)]
    side.session.receive_block(block(1))
    assert side.take() == []


@pytest.mark.parametrize("first", [0, WRAP - 10_000])
@pytest.mark.parametrize("size", [1, 100, 3000])
def test_what_is_received_is_completed_in_time(first: int, size: int) -> None:
    ours, theirs, a, b = attached(first)
    pump(a, b)
    told = first
    number = first
    while number < first + 4 * max(size, 2500):
        one = block(size)
        ours.receive_block(one)
        assert one.first_id == number
        number += size
        for item in a.take():
            if isinstance(item, spec.SessionCompleted):
                assert item.commands is not None
                (_, high) = item.commands[-1]
                told = number
                assert high == (number - 1) % WRAP
        assert number - told < COMPLETE_EVERY
    assert ours.received_next == number
    theirs.check()


def test_known_completed_shortens_what_is_told() -> None:
    side = at(SessionState.ATTACHED)
    session = side.session
    session.receive_block(block(10))
    session.tell_completed()
    assert side.take() == [spec.SessionCompleted(commands=[(0, 9)], timely_reply=False)]
    session.receive_control(spec.SessionKnownCompleted(commands=[(0, 4)]))
    session.receive_control(spec.SessionKnownCompleted(commands=[(50, 60)]))  # never sent: means nothing
    session.receive_block(block(2))
    session.tell_completed()
    assert side.take() == [spec.SessionCompleted(commands=[(5, 11)], timely_reply=False)]
    session.receive_control(spec.SessionFlush(confirmed=True))
    assert side.take() == [spec.SessionConfirmed(commands=[(5, 11)])]
    session.tell_completed()
    assert side.take() == []


def test_timely_reply_is_asked_for_now_and_then() -> None:
    side = at(SessionState.ATTACHED)
    asked = []
    for number in range(64):
        side.session.receive_block(block(1))
        side.session.tell_completed()
        (told,) = side.take()
        assert isinstance(told, spec.SessionCompleted)
        asked.append(told.timely_reply)
        if told.timely_reply:
            side.session.receive_control(spec.SessionKnownCompleted(commands=[(0, number)]))
    assert sum(asked) == 4


def test_a_range_stays_narrower_than_half_the_serial_numbers() -> None:
    side = at(SessionState.ATTACHED)
    side.session.received_next += 3 << 30
    side.session.tell_completed()
    (told,) = side.take()
    assert isinstance(told, spec.SessionCompleted)
    assert told.commands is not None
    ((low, high),) = told.commands
    assert high == (3 << 30) - 1
    assert high - low < 1 << 31


@pytest.mark.parametrize("first", [0, WRAP - 2])
def test_flush_is_answered_with_all_that_is_asked_for(first: int) -> None:
    ours, theirs, a, b = attached(first)
    theirs.send(spec.ExecutionSync())
    b.take()
    ours.receive_block(block(4))
    a.take()
    ours.receive_control(spec.SessionFlush(expected=True, confirmed=True, completed=True))
    ids = (first % WRAP, (first + 3) % WRAP)
    assert a.take() == [
        spec.SessionExpected(commands=[((first + 4) % WRAP,) * 2]),
        spec.SessionConfirmed(commands=[ids]),
        spec.SessionCompleted(commands=[ids], timely_reply=False),
    ]
    ours.receive_control(spec.SessionFlush())
    assert a.take() == []
    ours.flush(completed=True)
    assert a.take() == [spec.SessionFlush(completed=True)]


def test_flush_before_any_command() -> None:
    side = at(SessionState.ATTACHED)
    side.session.receive_control(spec.SessionFlush(expected=True, confirmed=True, completed=True))
    assert side.take() == [
        spec.SessionExpected(commands=[]),  # it is a new session
        spec.SessionConfirmed(commands=[]),
        spec.SessionCompleted(commands=[], timely_reply=False),
    ]


def test_timeouts_are_echoed() -> None:
    ours, theirs, a, b = attached()
    ours.request_timeout(60)
    pump(a, b)
    assert (ours.timeout_s, theirs.timeout_s) == (60, 60)


# ------------------------------------------------------------------------------------------------ points, gaps, errors
def test_a_command_point_sets_the_first_id_only() -> None:
    side = at(SessionState.ATTACHED)
    session = side.session
    session.receive_control(spec.SessionCommandPoint(command_id=100, command_offset=0))
    assert session.receive_command(spec.ExecutionSync(), sync=False) == 100
    assert side.take() == [spec.SessionCompleted(commands=[(100, 100)], timely_reply=False)]
    session.receive_control(spec.SessionCommandPoint(command_id=101, command_offset=0))
    for control in (
        spec.SessionCommandPoint(command_id=100, command_offset=0),
        spec.SessionCommandPoint(command_id=102, command_offset=0),
        spec.SessionCommandPoint(command_id=101, command_offset=5),
    ):
        with pytest.raises(ProtocolError, match=r"session\.command-point"):
            session.receive_control(control)


def test_a_gap_is_passed_over() -> None:
    ours, theirs, a, b = attached(WRAP - 2)
    theirs.gap(WRAP - 2, WRAP + 2)
    theirs.next_id = WRAP + 3
    pump(a, b)
    one = block(2)
    ours.receive_block(one)
    assert one.first_id == WRAP + 3
    ours.receive_control(spec.SessionGap(commands=[(0, 1)]))  # is behind us already
    assert ours.received_next == WRAP + 5
    with pytest.raises(ProtocolError, match=r"session\.gap from"):
        ours.receive_control(spec.SessionGap(commands=[(50, 51)]))


@pytest.mark.parametrize(
    ("exception", "error", "text"),
    [
        (spec.ExecutionException(error_code=404, command_id=0, description="no queue"), NotFound, "queue.query"),
        (
            spec.ExecutionException(error_code=404, class_code=8, command_code=1, description="x"),
            NotFound,
            "refused queue.declare with 404: x",
        ),
        (spec.ExecutionException(error_code=506, description="limit"), CommandFailed, "refused with 506: limit"),
        (spec.ExecutionException(error_code=999, command_id=0xFFFFFFFF), UnknownError, "refused with 999"),
        (spec.ExecutionException(), UnknownError, "refused with 0"),
    ],
)
def test_an_exception_is_typed_and_names_the_command(
    exception: spec.ExecutionException, error: type[CommandFailed], text: str
) -> None:
    side = at(SessionState.ATTACHED)
    side.session.send(spec.QueueQuery(queue="q"), sync=True)
    side.session.receive_command(exception, sync=False)
    side.session.receive_command(spec.ExecutionException(error_code=541), sync=False)
    side.session.receive_control(spec.SessionDetach(name=b"name"))
    with pytest.raises(error, match=text) as raised:
        side.session.check()
    assert type(raised.value) is error or error is CommandFailed
    assert raised.value.command_id == (
        None if exception.command_id is None else {0: 0, 0xFFFFFFFF: 0xFFFFFFFF}[exception.command_id]
    )
