"""What a spool records of a queue without transactions: the state, and the batches with an acknowledgement in doubt."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

from amqp_spark.state.records import RecordUnreadable

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SpooledRecord:
    """The content of a state file.

    Attributes:
        state: what brokers with transactions have as their state message.
        doubts: files of batches whose acknowledgement is not known to be kept, oldest first; each with whether the
            batch has come again, and is acknowledged again.
        recognised: number of messages that came again and were dropped, so far.
        alike: number of messages that came again, perhaps, and were read as others.
        token: of the process that wrote the file.
        anchor: the exchange that only the broker of this state has; empty in a file of an earlier release.
    """

    state: bytes
    doubts: Mapping[str, bool] = field(default_factory=dict)
    recognised: int = 0
    alike: int = 0
    token: str = ""
    anchor: str = ""

    def dump(self) -> bytes:
        """The content of the file."""
        value = {
            "version": VERSION,
            "state": json.loads(self.state),
            "doubts": [{"file": file, "returning": returning} for file, returning in self.doubts.items()],
            "recognised": self.recognised,
            "alike": self.alike,
            "token": self.token,
            "anchor": self.anchor,
        }
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def load(cls, content: bytes) -> Self:
        """Parse the output of :meth:`dump`; RecordUnreadable describes foreign data."""
        try:
            value: Any = json.loads(content)
            if value["version"] != VERSION:
                raise RecordUnreadable(f"it has version {str(value['version'])[:20]}, and {VERSION} is known")
            doubts = {str(each["file"]): bool(each["returning"]) for each in value["doubts"]}
            state = json.dumps(value["state"], separators=(",", ":")).encode()
            return cls(
                state=state,
                doubts=doubts,
                recognised=int(value["recognised"]),
                alike=int(value["alike"]),
                token=str(value["token"]),
                anchor=str(value.get("anchor", "")),
            )
        except (ValueError, LookupError, TypeError) as error:
            raise RecordUnreadable(f"its file was not written by amqp_spark ({type(error).__name__})") from None
