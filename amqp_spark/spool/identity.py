"""Owner of a spool directory, recorded in a file in it, since two consumers must never share one."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Final

from amqp_spark.spool.directories import ClaimedError
from amqp_spark.state.names import hashed

if TYPE_CHECKING:
    from amqp_spark.spool.directories import Directory
    from amqp_spark.spool.location import Location

IDENTITY: Final = "amqp-spark-spool.json"
"""The file that names the owner of the directory."""
_VERSION: Final = 1
_MAX_BYTES: Final = 1 << 16
_EMPTY_LOOKS: Final = 20
_EMPTY_SECONDS: Final = 0.1


class Identity:
    """The file :data:`IDENTITY` of one consumer; problems with it raise a SpoolError.

    Args:
        location: for the text of errors.
        consumer_id: the consumer that must own the directory.
    """

    def __init__(self, location: Location, consumer_id: str) -> None:
        self._location = location
        self._consumer_id = consumer_id
        self.claims = f"{IDENTITY}.{hashed(consumer_id)}."
        """Name prefix of the files with which this consumer claims a directory."""

    def content(self, place: Directory) -> bytes | None:
        """Content of the file; ``None`` if it does not exist. Raises the errors of the directory."""
        for _ in range(_EMPTY_LOOKS):
            try:
                with place.open(IDENTITY) as opened:
                    content = bytes(opened.read_at(0, _MAX_BYTES))
            except FileNotFoundError:
                return None
            if content:
                return content
            time.sleep(_EMPTY_SECONDS)  # being written, on a file system that shows incomplete files
        return b""

    def claim(self, place: Directory) -> bytes | None:
        """Record this consumer as the owner; return the content then: of two callers, one reads the other's name."""
        value = {"version": _VERSION, "consumerId": self._consumer_id}
        try:
            place.claim(IDENTITY, json.dumps(value).encode() + b"\n", hashed(self._consumer_id))
        except ClaimedError as error:
            raise self._location.error(
                "is about to be shared by two consumers: another one claims it at this moment. Give each "
                f"consumerId a spoolLocation of its own (if no query runs, delete {error})"
            ) from None
        return self.content(place)

    def check(self, content: bytes | None) -> None:
        """Raise SpoolError unless the content names this consumer."""
        try:
            value = None if content is None else json.loads(content)
        except ValueError:
            value = None
        if not isinstance(value, dict) or "version" not in value:
            raise self._location.error(
                f"has no readable {IDENTITY}, which says whose it is: bring that file back, or use an empty directory "
                "as spoolLocation"
            )
        if value["version"] != _VERSION:
            raise self._location.error(
                f"has version {str(value['version'])[:20]}; this amqp_spark knows version {_VERSION}: use the "
                "one that wrote it, or a newer one"
            )
        if value.get("consumerId") != self._consumer_id:
            raise self._location.error(
                f"belongs to consumer {str(value.get('consumerId'))[:200]!r}, not to {self._consumer_id!r}: a spool "
                "cannot be shared by two consumers; give each consumerId a spoolLocation of its own"
            )
