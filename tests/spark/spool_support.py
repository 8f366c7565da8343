"""Places for a spool to be at: the local file system, one that Arrow calls back for, an object store."""

from __future__ import annotations

import io
import threading
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import fs

from amqp_spark.errors import SpoolError
from amqp_spark.spool.spool import Spool
from amqp_spark.state.records import OwnedBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from amqp_spark.spool.spool import Written

CONSUMER = "orders-loader"
QUEUE = "orders"


def owned(spool: Spool, written: Written) -> OwnedBatch:
    """Return the entry of a file in the state message."""
    header = spool.read(written.file, written.checksum).header
    return OwnedBatch(
        header.epoch,
        header.sequence,
        header.begin,
        header.begin + header.count,
        written.nbytes,
        written.file,
        written.checksum,
    )


def write(
    spool: Spool, bodies: Sequence[bytes] = (b"one", b"two", b"three"), sequence: int = 0, epoch: int = 1
) -> Written:
    """Write a batch, each of whose transfers is a part."""
    ends, end = [], 0
    for body in bodies:
        end += len(body)
        ends.append(end)
    parts = [memoryview(body) for body in bodies]
    return spool.write(epoch=epoch, sequence=sequence, begin=100, parts=parts, ends=ends)


@dataclass
class Faulty(fs.FileSystemHandler):
    """A file system below a directory of the local one, which does what a test tells it to.

    Attributes:
        root: the directory; paths are below it.
        type_name: what kind it says it is. ``s3`` makes the spool put its files; here as there, one shows when its
            stream is closed, also after an error.
        moves_over: whether a file can be moved over another.
        room: bytes that can be written before the error of ``when_full``; ``None``: any number.
        fails: operation -> the error that it raises.
        before: operation -> called before it, with its path.
    """

    root: Path
    type_name: str = "remote"
    moves_over: bool = True
    room: int | None = None
    when_full: OSError = field(default_factory=lambda: OSError(28, "No space left on device"))
    fails: dict[str, Exception] = field(default_factory=dict)
    before: dict[str, Callable[[str], None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._local = fs.LocalFileSystem()

    def resolve(self, _location: str) -> tuple[fs.FileSystem, str]:
        """As a spool resolves its URI."""
        return _TypedFileSystem(self), "spool"

    def path(self, path: str) -> str:
        """Where a path is on the machine."""
        return str(self.root / path)

    def _enter(self, operation: str, path: str) -> str:
        if operation in self.before:
            self.before[operation](path)
        if operation in self.fails:
            raise self.fails[operation]
        return self.path(path)

    def get_type_name(self) -> str:
        return self.type_name

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: Any) -> Any:
        return [self._told(self._local.get_file_info(self._enter("info", path))) for path in paths]

    def get_file_info_selector(self, selector: fs.FileSelector) -> Any:
        real = fs.FileSelector(self._enter("list", selector.base_dir), selector.allow_not_found, selector.recursive)
        return [self._told(each) for each in self._local.get_file_info(real)]

    def _told(self, info: fs.FileInfo) -> fs.FileInfo:
        return fs.FileInfo(str(Path(info.path).relative_to(self.root)), type=info.type, size=info.size)

    def create_dir(self, path: str, recursive: bool) -> None:
        self._local.create_dir(self._enter("mkdir", path), recursive=recursive)

    def delete_file(self, path: str) -> None:
        self._local.delete_file(self._enter("delete", path))

    def move(self, src: str, dest: str) -> None:
        source, target = self._enter("move", src), Path(self.path(dest))
        if self.moves_over:
            self._local.move(source, str(target))
        else:
            target.hardlink_to(source)
            Path(source).unlink()

    def open_input_file(self, path: str) -> Any:
        return pa.PythonFile(Path(self._enter("read", path)).open("rb"), mode="r")

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        return pa.PythonFile(_Counted(self, self._enter("write", path)), mode="w")

    def delete_dir(self, path: str) -> None:
        raise AssertionError(f"the spool must not delete the directory {path}")

    delete_dir_contents = delete_root_dir_contents = copy_file = delete_dir  # type: ignore[assignment]
    open_input_stream = open_append_stream = delete_dir  # type: ignore[assignment]


class _TypedFileSystem(fs.PyFileSystem):
    """Arrow puts ``py::`` before the name of a handler."""

    @property
    def type_name(self) -> str:
        return str(self.handler.get_type_name())


class _Counted(io.FileIO):
    def __init__(self, faulty: Faulty, path: str) -> None:
        self._faulty = faulty
        self._target = path
        self._hidden = faulty.type_name == "s3"
        super().__init__(str(faulty.root / f".{uuid.uuid4().hex}") if self._hidden else path, "wb")

    def write(self, data: Any) -> int:
        size = len(data)
        if self._faulty.room is not None:
            if size > self._faulty.room:
                super().write(memoryview(data)[: self._faulty.room])
                self._faulty.room = 0
                raise self._faulty.when_full
            self._faulty.room -= size
        return super().write(data)

    def close(self) -> None:
        shows = self._hidden and not self.closed
        super().close()
        if shows:
            Path(str(self.name)).rename(self._target)


def faulty_spool(
    root: Path, *, consumer_id: str = CONSUMER, queue: str = QUEUE, location: str = "remote://host/spool", **faults: Any
) -> tuple[Spool, Faulty]:
    """A spool on a :class:`Faulty` file system, not open; its files are in ``root/spool``."""
    faulty = Faulty(root, **faults)
    return Spool(location, consumer_id=consumer_id, queue=queue, resolve=faulty.resolve), faulty


def outcome_of(call: Callable[[], None]) -> SpoolError | None:
    """Return the text of the error that a call raises."""
    try:
        call()
    except SpoolError as error:
        return error
    return None


def at_once(*spools: Spool) -> list[SpoolError | None]:
    """Open all of them at the same time."""
    barrier = threading.Barrier(len(spools))
    outcomes: list[SpoolError | None] = [None] * len(spools)

    def start(index: int) -> None:
        barrier.wait(60)
        outcomes[index] = outcome_of(spools[index].open)

    threads = [threading.Thread(target=start, args=(index,)) for index in range(len(spools))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return outcomes
