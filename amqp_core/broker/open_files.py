"""The number of files and sockets that this process may have open."""

from __future__ import annotations

import contextlib
import sys
from typing import Final

if sys.platform != "win32":  # which has no such limit
    import resource

# The store, the log, the event loop, and clients that are about to log in or are refused.
_BESIDES: Final = 200


def allow_connections(count: int) -> None:
    """Raise the soft limit of open files so that ``count`` clients can connect, as far as the hard one allows."""
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _BESIDES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # clients beyond the limit wait until others have gone
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
