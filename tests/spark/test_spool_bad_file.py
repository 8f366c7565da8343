"""Files of a spool that are not as written: cut, damaged, exchanged, of another consumer, of another version."""

from __future__ import annotations

import json
import os
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqp_spark.errors import SpoolError
from amqp_spark.spool.identity import IDENTITY
from amqp_spark.spool.spool import Spool
from amqp_spark.state.records import OwnedBatch
from tests.spark.spool_support import CONSUMER, QUEUE, faulty_spool, write
from tests.support.choice import examples

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqp_spark.spool.spool import Written

ROUND = settings(max_examples=examples(150))


def local(directory: Path, consumer_id: str = CONSUMER, queue: str = QUEUE) -> Spool:
    return Spool(str(directory), consumer_id=consumer_id, queue=queue)


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    spool = local(tmp_path / "spool")
    spool.open()
    return spool


def small(spool: Spool) -> tuple[Path, Written]:
    written = write(spool)
    return Path(spool.location.text) / written.file, written


def refused(spool: Spool, written: Written, match: str | None = None) -> None:
    """Every reader of the file gets the error."""
    batch = owned_of_small(written)
    with pytest.raises(SpoolError, match=match):
        spool.read(written.file, written.checksum)
    with pytest.raises(SpoolError, match=match):
        spool.check(batch)


def owned_of_small(written: Written) -> OwnedBatch:
    return OwnedBatch(1, 0, 100, 103, written.nbytes, written.file, written.checksum)


def test_cut_anywhere(spool: Spool) -> None:
    path, written = small(spool)
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        refused(spool, written, "is empty" if size == 0 else "ends (after|inside)")
    path.write_bytes(data + b"\0")
    refused(spool, written, f"has {len(data) + 1} bytes instead of {len(data)}")
    path.write_bytes(data)
    spool.check(owned_of_small(written))


def test_any_byte_that_is_another(spool: Spool) -> None:
    path, written = small(spool)
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes((data[at] ^ 1 << at % 8,)) + data[at + 1 :])
        lost = rf"AMQP_SPOOL_BATCH_LOST\].* {written.file}, which .*Restore the spool"
        refused(spool, written, rf"AMQP_SPOOL_VERSION_UNKNOWN\].*{written.file}" if 8 <= at < 12 else lost)


@ROUND
@given(at=st.integers(0, 2_000_000), flips=st.integers(1, 255))
def test_any_byte_of_a_large_file(tmp_path_factory: pytest.TempPathFactory, at: int, flips: int) -> None:
    spool = local(tmp_path_factory.getbasetemp() / "flipped")
    spool.open()
    if not spool.files():
        write(spool, [os.urandom(1000)] * 1000)
    (name,) = spool.files()
    path = Path(spool.location.text) / name
    with path.open("r+b") as file:
        at %= path.stat().st_size
        file.seek(-12, os.SEEK_END)
        checksum = f"crc32:{int.from_bytes(file.read(4), 'little'):08x}"
        spool.read(name, checksum)
        file.seek(at)
        before = file.read(1)
        file.seek(at)
        file.write(bytes((before[0] ^ flips,)))
        file.flush()
        with pytest.raises(SpoolError):
            spool.read(name, checksum)
        file.seek(at)
        file.write(before)


def test_damage_in_an_object_store_is_found_when_it_is_read(tmp_path: Path) -> None:
    spool, _ = faulty_spool(tmp_path, type_name="s3")
    spool.open()
    written = write(spool)
    path = tmp_path / "spool" / written.file
    data = path.read_bytes()
    at = data.index(b"onetwothree")
    path.write_bytes(data[:at] + b"X" + data[at + 1 :])
    spool.check(owned_of_small(written))  # the transfers would have to be fetched for that
    with pytest.raises(SpoolError, match="is damaged: the checksum of its contents is crc32:"):
        spool.check(owned_of_small(written), thorough=True)
    with pytest.raises(SpoolError, match="is damaged: the checksum of its contents is crc32:"):
        spool.read(written.file, written.checksum)
    for at in (0, 9, 13, 17, 25, len(data) - 1, len(data) - 10, len(data) - 15, len(data) - 25):
        path.write_bytes(data[:at] + bytes((data[at] ^ 4,)) + data[at + 1 :])
        refused(spool, written)


def test_another_version(spool: Spool) -> None:
    path, written = small(spool)
    data = path.read_bytes()
    path.write_bytes(data[:8] + b"\2\0\0\0" + data[12:])
    refused(
        spool,
        written,
        "of version 2, but this amqp_spark knows version 1. Use the amqp_spark that wrote it, or a newer one",
    )


def test_something_else_under_the_name(spool: Spool) -> None:
    path, written = small(spool)
    path.write_bytes(b"PAR1" * 100)
    refused(spool, written, "does not begin like a file of the spool")
    path.unlink()
    path.mkdir()
    refused(spool, written, "Is a directory")


def test_the_file_of_another_batch_under_the_name(spool: Spool) -> None:
    path, written = small(spool)
    other = write(spool, [b"other"], sequence=1)
    path.write_bytes((path.parent / other.file).read_bytes())
    with pytest.raises(SpoolError, match="is not the one that was accepted: its checksum is crc32:"):
        spool.read(written.file, written.checksum)
    with pytest.raises(SpoolError, match="holds another batch: 1 of epoch 1, with 1 messages of 5 bytes, instead of 3"):
        spool.check(owned_of_small(written))


@pytest.mark.parametrize(
    ("identity", "told"),
    [({"consumer_id": "another"}, "is of consumer 'another', not of 'orders-"), ({"queue": "other"}, "is of queue 'o")],
)
def test_the_file_of_another_consumer_under_the_name(
    identity: dict[str, str], told: str, spool: Spool, tmp_path: Path
) -> None:
    path, written = small(spool)
    other = local(tmp_path / "others", **identity)
    other.open()
    path.write_bytes((tmp_path / "others" / write(other).file).read_bytes())
    refused(spool, written, told)


@pytest.mark.parametrize(
    "other",
    [{"begin": 99}, {"nbytes": 12}, {"end": 104}, {"checksum": "crc32:00000000"}],
)
def test_a_record_that_says_something_else(other: dict[str, Any], spool: Spool) -> None:
    _path, written = small(spool)
    batch = owned_of_small(written)
    spool.check(batch)
    with pytest.raises(SpoolError, match=r"holds another batch|is not the one that was accepted"):
        spool.check(replace(batch, **other))


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "", "x" * 5000, IDENTITY, "spool", "..", "a\nb"])
def test_a_name_that_leads_elsewhere(name: str, spool: Spool) -> None:
    asks: list[Callable[[], object]] = [
        lambda: spool.read(name, "crc32:00000000"),
        lambda: spool.batch(name),
        lambda: spool.delete(name),
    ]
    for ask in asks:
        with pytest.raises(SpoolError, match=r"which does not exist|AMQP_SPOOL_FILE_FOREIGN") as told:
            ask()
        assert len(str(told.value)) < 1000


@pytest.mark.parametrize(
    "values",
    [
        b"not json",
        b"[]",
        b'{"consumerId":"orders-loader"}',
        b'{"consumerId":"orders-loader","queue":"orders","epoch":1,"sequence":0,"begin":100,"count":-3,"bytes":11}',
        b'{"consumerId":"orders-loader","queue":"orders","epoch":"1","sequence":0,"begin":100,"count":3,"bytes":11}',
    ],
)
def test_a_header_that_is_no_header(values: bytes, spool: Spool) -> None:
    path, written = small(spool)
    path.write_bytes(struct.pack("<8sIII", b"AMQPSPOL", 1, len(values), zlib.crc32(values)) + values + b"\0" * 100)
    refused(spool, written, "has a header with other fields|has no readable (count|epoch) in its header")


def test_a_header_of_absurd_length(spool: Spool) -> None:
    path, written = small(spool)
    data = path.read_bytes()
    path.write_bytes(data[:12] + b"\xff\xff\xff\xff" + data[16:])
    refused(spool, written, "is damaged in its header")


def test_absurd_numbers_in_a_header_take_no_memory(spool: Spool) -> None:
    path, written = small(spool)
    values = json.dumps(
        {"consumerId": CONSUMER, "queue": QUEUE, "epoch": 1, "sequence": 0, "begin": 100, "count": 3, "bytes": 1 << 60}
    ).encode()
    path.write_bytes(struct.pack("<8sIII", b"AMQPSPOL", 1, len(values), zlib.crc32(values)) + values + b"\0" * 100)
    with pytest.raises(SpoolError, match="ends after"):
        spool.read(written.file, written.checksum)
