"""Location of a spool as shown in messages, and conversion of file system errors into errors with advice."""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
from typing import TYPE_CHECKING, Final

from pyarrow import ArrowException

from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import SpoolError
from amqp_spark.options.kinds import shown_location

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = logging.getLogger(__name__)

SLOW_SECONDS: Final = 30.0
"""After so long a warning says that the file system keeps the query waiting: a mount of a dead server never answers."""
_MAX_REASON: Final = 300
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FORBIDDEN: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_PLAIN: Final = frozenset({"endpoint_override", "scheme", "region", "allow_bucket_creation", "allow_bucket_deletion"})
"""Parameters of a URI whose values may appear in messages."""


class Location:
    """The value of option ``spoolLocation``, whose query may contain secrets; ``shown``: for messages, without the
    query and the login of a URI."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.is_path = text.startswith("/")
        self.shown = shown_location(text)

    @contextlib.contextmanager
    def spool_errors(self, what: str, consequence: str = "", *, but_missing: bool = False) -> Iterator[None]:
        """Turn errors of the file system into a SpoolError with the failed action, the reason and advice.

        ``what`` continues "the spool …"; ``consequence`` is that for the messages; with ``but_missing``,
        FileNotFoundError passes unchanged: the caller handles it. An action that takes long is logged.
        """
        slow = threading.Timer(SLOW_SECONDS, self._warn_of_wait)
        slow.daemon = True
        with contextlib.suppress(RuntimeError):  # there can be no more threads
            slow.start()
        try:
            yield
        except (OSError, ArrowException, NotImplementedError) as error:
            if isinstance(error, FileNotFoundError) and but_missing:
                raise
            remedy = f"{_advice(error)}; {consequence}" if consequence else _advice(error)
            raise SpoolError(
                SparkCondition.SPOOL_UNUSABLE(spool=self.shown, what=what, reason=self._reason(error), remedy=remedy)
            ) from None
        finally:
            slow.cancel()

    def _warn_of_wait(self) -> None:
        _log.warning(
            "spool %s: a read or write has taken %.0f s so far; if it goes on, check that its file system can be "
            "reached",
            self.shown, SLOW_SECONDS,
        )  # fmt: skip

    def _reason(self, error: BaseException) -> str:
        number = getattr(error, "errno", None)
        strerror = getattr(error, "strerror", None)
        text = str(strerror) if number and strerror else str(error)
        # Arrow quotes the URI that it cannot use, and its query may contain secrets.
        text = " ".join(text.replace(self.text, self.shown).split())
        query = "" if self.is_path else self.text.partition("?")[2]
        for name, _, value in (pair.partition("=") for pair in query.split("&")):
            if (value or name) and name not in _PLAIN:
                text = text.replace(value or name, "…")
        return text[:_MAX_REASON].rstrip(".") or type(error).__name__


def _advice(error: BaseException) -> str:
    number = getattr(error, "errno", None)
    if number in _FULL:
        return "Make room there, or lower maxBytesPerTrigger, and start the query again"
    if number in _FORBIDDEN:
        return "Let the user that runs the driver read and write there"
    if isinstance(error, NotADirectoryError):
        return "Set spoolLocation to a directory"
    return "Check that spoolLocation exists and that the driver can reach it and write there"


def version_unknown(spool: str, what: str, version: object, known: int) -> SpoolError:
    """Build the error for a spool, or a file of it, that another version of this package wrote."""
    return SpoolError(SparkCondition.SPOOL_VERSION_UNKNOWN(spool=spool, what=what, version=version, known=known))
