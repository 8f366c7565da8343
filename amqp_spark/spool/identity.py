"""Owner of a spool directory, recorded in a file in it, since two consumers must never share one."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Final

from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import SpoolError
from amqp_spark.spool.directories import ClaimedError
from amqp_spark.spool.format import FIRST_PROTOCOL
from amqp_spark.spool.location import version_unknown
from amqp_spark.state.names import hashed

if TYPE_CHECKING:
    from amqp_spark.spool.directories import Directory
    from amqp_spark.spool.location import Location

IDENTITY: Final = "amqp-spark-spool.json"
"""The file that names the owner of the directory."""
_VERSION: Final = 1
_PROTOCOL: Final = "protocol"
_MAX_BYTES: Final = 1 << 16
_EMPTY_LOOKS: Final = 20
_EMPTY_SECONDS: Final = 0.1


class Identity:
    """The file :data:`IDENTITY` of one consumer; problems with it raise a SpoolError."""

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

    def claim(self, place: Directory, protocol: str = FIRST_PROTOCOL) -> bytes | None:
        """Record this consumer as the owner, and the protocol of its messages; return the content then: of two callers,
        one reads the other's name."""
        value = {"version": _VERSION, "consumerId": self._consumer_id}
        if protocol != FIRST_PROTOCOL:
            value[_PROTOCOL] = protocol
        try:
            place.claim(IDENTITY, json.dumps(value).encode() + b"\n", hashed(self._consumer_id))
        except ClaimedError as error:
            raise SpoolError(SparkCondition.SPOOL_CLAIMED(spool=self._location.shown, claim=error)) from None
        return self.content(place)

    def check(self, content: bytes | None, protocol: str | None = None) -> str:
        """Return the protocol in the content. SpoolError: it names another consumer, or another than ``protocol``."""
        try:
            value = None if content is None else json.loads(content)
        except ValueError:
            value = None
        spool = self._location.shown
        if not isinstance(value, dict) or "version" not in value:
            raise SpoolError(SparkCondition.SPOOL_OWNER_UNREADABLE(spool=spool, file=IDENTITY))
        if value["version"] != _VERSION:
            raise version_unknown(spool, f"a file {IDENTITY}", str(value["version"])[:20], _VERSION)
        if value.get("consumerId") != self._consumer_id:
            owner = str(value.get("consumerId"))[:200]
            raise SpoolError(SparkCondition.SPOOL_FOREIGN(spool=spool, owner=owner, consumer=self._consumer_id))
        found = str(value.get(_PROTOCOL, FIRST_PROTOCOL))[:20]
        if protocol is not None and found != protocol:
            raise SpoolError(SparkCondition.SPOOL_OTHER_PROTOCOL(spool=spool, found=found, protocol=protocol))
        return found
