"""Checkpoints that Spark refuses although they have no logged batch; only these may be deleted.

Spark logs a batch by renaming a temporary file in ``offsets``. A driver that is killed while it writes its very first
one leaves that file there. Since 4.1 (``spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart``) Spark does not
start a query without a batch whose ``offsets``, ``commits`` or ``state`` hold anything: the user has to delete them.
"""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_REFUSED: Final = "[STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY]"
_LOGS: Final = ("offsets", "commits", "state")
# the temporary file of batch 0, and the checksum that Hadoop writes beside it
_TEMPORARY: Final = re.compile(r"offsets/(\.0\.[0-9a-f-]{36}\.tmp|\.\.0\.[0-9a-f-]{36}\.tmp\.crc)")


def is_refused(error: str | None) -> bool:
    """Whether Spark refused to start a query because its checkpoint is not empty."""
    return error is not None and _REFUSED in error


def why_kept(checkpoint: Path) -> str | None:
    """Why a checkpoint must not be deleted; ``None`` if its first batch was begun, and none was logged."""
    found = [path.relative_to(checkpoint).as_posix() for log in _LOGS for path in (checkpoint / log).rglob("*")]
    if not found:
        return "Spark refuses a checkpoint in which nothing is logged, nor was begun"
    more = sorted(name for name in found if _TEMPORARY.fullmatch(name) is None)
    return f"Spark refuses a checkpoint that has more than a batch that was begun: {more[:5]}" if more else None


def forget(checkpoint: Path) -> str | None:
    """Delete a checkpoint that Spark has refused; return why it was kept instead."""
    reason = why_kept(checkpoint)
    if reason is None:
        shutil.rmtree(checkpoint)
    return reason
