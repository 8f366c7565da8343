"""A message of the spool as it is shown, and the file that it is written to; without a broker."""

from __future__ import annotations

import base64
import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from amqp_spark.errors import UNDECODABLE, StateError
from amqp_spark.state.names import CONSUMER, Names
from amqp_spark.state.records import ConsumerState, OwnedBatch
from amqp_spark.transactions.set_aside import MessagePosition, OwnedMessage, lines, write
from tests.support import wire

if TYPE_CHECKING:
    from pathlib import Path

BATCH = OwnedBatch(3, 7, 10, 20, 1000, "a-file.spool", "crc32:00000000")
WHOLE = wire.transfer(
    wire.delivery(routing_key=wire.str8(b"a\x1b[2J"), redelivered=b"")
    + wire.message(
        correlation_id=wire.vbin16(b"\x00\xff"),
        application_headers=wire.map_([(b"symbol", 0x95, wire.vbin16(b"EUR"))]),
    ),
    b"x" * 1000,
)


def message(transfer: bytes, position: int = 12, skipped: tuple[int, ...] = ()) -> OwnedMessage:
    batch = replace(BATCH, skipped=skipped)
    state = ConsumerState("me", "qü", "/spool", 3, 8, None, (batch,))
    return OwnedMessage(Names(CONSUMER, "me"), state, batch, position, transfer, "0-10")


def test_a_message_is_shown_in_short_and_moves_no_cursor() -> None:
    shown = lines(message(WHOLE))
    assert shown[0] == "position 12 of epoch 3, queue 'qü', in a-file.spool"
    text = "\n".join(shown)
    assert "\x1b" not in text
    assert r"routing_key: a\x1b[2J" in text
    assert "application_headers: {'symbol': 'EUR'}" in text
    assert "body: 1,000 bytes: b'xxx" in text
    assert len(text) < 1000
    assert "set aside already" in lines(message(WHOLE, skipped=(2,)))[0]
    assert "set aside already" not in lines(message(WHOLE, skipped=(12,)))[0]


def test_the_file_has_all_of_it_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    write(message(WHOLE), file)
    written = json.loads(file.read_text(encoding="utf-8"))
    assert (written["queue"], written["epoch"], written["position"]) == ("qü", 3, 12)
    assert written["columns"]["application_headers"] == {"symbol": "EUR"}
    assert base64.b64decode(written["columns"]["correlation_id"]) == b"\x00\xff"
    assert base64.b64decode(written["columns"]["body"]) == b"x" * 1000
    assert base64.b64decode(written["transfer"]) == WHOLE
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("transfer", [wire.transfer(b"\0\0\1\0", b"body"), WHOLE[:-1], b"nonsense of any length"])
def test_a_message_that_cannot_be_decoded_is_written_as_it_came(tmp_path: Path, transfer: bytes) -> None:
    file = tmp_path / "file.json"
    write(message(transfer), file)
    written = json.loads(file.read_text(encoding="utf-8"))
    assert base64.b64decode(written["transfer"]) == transfer
    assert "_corrupt_record" in written["columns"]
    assert any("_corrupt_record" in line for line in lines(message(transfer)))
    assert UNDECODABLE in written["columns"]["_corrupt_record"] or "frame" in written["columns"]["_corrupt_record"]


def test_a_file_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    file.write_text("mine")
    with pytest.raises(StateError, match="it exists already"):
        write(message(WHOLE), file)
    assert file.read_text() == "mine"


def test_a_file_that_could_not_be_synced_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StateError, match=r"No space left on device.*nothing was done"):
        write(message(WHOLE), tmp_path / "file.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("text", "place"), [("12", MessagePosition(None, 12)), ("3:12", MessagePosition(3, 12))])
def test_a_place(text: str, place: MessagePosition) -> None:
    assert MessagePosition.parse(text) == place
    assert place.is_in(BATCH)


@pytest.mark.parametrize("text", ["4:12", "9", "20"])
def test_another_place(text: str) -> None:
    assert not MessagePosition.parse(text).is_in(BATCH)


@pytest.mark.parametrize("text", ["", "-1", "a", "1:2:3", "1:", "²"])
def test_no_place(text: str) -> None:
    with pytest.raises(ValueError, match="EPOCH:POSITION"):
        MessagePosition.parse(text)
