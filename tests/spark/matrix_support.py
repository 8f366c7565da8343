"""Cases of the crash matrix without anything that runs: what they publish and what has come of it is made up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.matrix.cases import Case
from tests.matrix.results import Result
from tests.matrix.servers import BROKER_J
from tests.matrix.subjects import Plan, Subject

if TYPE_CHECKING:
    from pathlib import Path

EXACTLY_ONCE = "source:exactly-once:tx-sent@driver#0"
AT_LEAST_ONCE = "source:at-least-once:accept-sent@driver#0"
AT_MOST_ONCE = "source:at-most-once:read-mid@driver#0"
SINK = "sink-stream:exactly-once:prepared@driver#0"
FORGETFUL = "sink-stream:exactly-once:prepared@memory-broker#0"

UUID = "5dcdc8e5-29ac-4373-98fa-78a144206a41"
BEGUN = (f"offsets/.0.{UUID}.tmp", f"offsets/..0.{UUID}.tmp.crc")
"""Files of a driver that was killed while it wrote its first offset."""
BESIDE = ("metadata", ".metadata.crc", "sources/0/0", "sources/0/.0.crc")
"""Files of a checkpoint before anything is logged."""
REFUSAL = (
    "[STREAM_FAILED] Query [id = 37d5, runId = d081] terminated with exception: "
    "[STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY] The checkpoint location file:/tmp/mx/checkpoint/offsets should be "
    "empty on batch 0\nPlease either use a new checkpoint location, or delete the existing data"
)


def subject_of(text: str, directory: Path, *, sent: int = 10) -> Subject:
    """A case that has published so many messages."""
    case = Case.parse(text)
    subject = Subject(
        case=case,
        plan=Plan.of(case, 1),
        name="mx",
        directory=directory,
        server=BROKER_J,
        url="amqp://localhost/default",
        username="u",
        password="p",
    )
    subject.sent = sent
    return subject


def result_of(text: str, *, seed: int = 1, **what: Any) -> Result:
    """A run of a case."""
    return Result.of(Case.parse(text), seed=seed, code="abc", **what)


def checkpoint(directory: Path, *names: str) -> Path:
    """One with these files."""
    for name in names:
        path = directory / "checkpoint" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return directory / "checkpoint"
