"""Read the last committed batch from the checkpoint of a query.

Spark signals a commit to a source with its next call, and makes no further call when the query is stopped. The
checkpoint records it, too: ``commits/<batch>`` exists when the batch is committed, and ``offsets/<batch>`` has the end
offsets of its sources, one per line.
"""

from __future__ import annotations

import json
import logging
import os
import posixpath
import threading
from typing import Final

from pyarrow import ArrowException, fs

from amqp_spark.options.kinds import shown_location

_log = logging.getLogger(__name__)

READ_SECONDS: Final = 5.0
"""Longest that a file system which does not answer delays the stop of a query."""


def last_committed(location: str) -> list[object]:
    """End offsets of the sources in the last committed batch; none, with a warning, if the log cannot be read."""
    found: list[object] = []
    problems = [f"no answer within {READ_SECONDS:.0f} s"]

    def read() -> None:
        try:
            found.extend(_read(location))
            problems.clear()
        except (OSError, ArrowException, NotImplementedError) as error:
            number = getattr(error, "errno", None)
            problems[:] = [os.strerror(number) if number else type(error).__name__]

    reading = threading.Thread(target=read, name="amqp-commit-log", daemon=True)
    reading.start()
    reading.join(READ_SECONDS)
    for problem in problems[:]:
        _log.warning(
            "the commit log in %s (option queryCheckpoint) cannot be read: %s. The broker sends the last batch again, "
            "although it may be committed; queryCheckpoint must be the checkpointLocation of the query",
            shown_location(location), problem,
        )  # fmt: skip
        return []
    return found


def _read(location: str) -> list[object]:
    local = location.startswith("/")
    files, root = (fs.LocalFileSystem(), location) if local else fs.FileSystem.from_uri(location)
    commits = files.get_file_info(fs.FileSelector(posixpath.join(root, "commits")))
    batches = {int(each.base_name): each for each in commits if each.is_file and each.base_name.isdecimal()}
    if not batches:
        return []
    newest = max(batches)
    path = posixpath.join(root, "offsets", str(newest))
    logged = files.get_file_info(path)
    written, committed = logged.mtime_ns, batches[newest].mtime_ns
    # A commit that is older than the offsets is left over from a partly deleted checkpoint.
    if not logged.is_file or written is None or committed is None or committed < written:
        return []
    with files.open_input_stream(path) as stream:
        lines = stream.read().decode(errors="replace").splitlines()
    return [end for line in lines[2:] if (end := _parsed(line)) is not None]


def _parsed(line: str) -> object:
    try:
        return json.loads(line)
    except ValueError:  # "-": this source has no offset
        return None
