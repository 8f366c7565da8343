"""Format the results as text for a terminal and as a dictionary for JSON.

Names come from brokers and options: control characters are escaped. Xids are shown whole, on a line of their own.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, Final

from amqp_core.printable import printable
from amqp_spark.options.kinds import shown_location
from amqp_spark.state.records import OPEN, stored
from amqp_spark.transactions.branch_status import MEANINGS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from amqp_spark.state.records import OwnedBatch
    from amqp_spark.transactions.branch_status import BranchStatus
    from amqp_spark.transactions.browse import Found
    from amqp_spark.transactions.consumer_status import ConsumerQueue
    from amqp_spark.transactions.writer_status import WriterStatus


_NUMBER: Final = re.compile("[0-9,]+|-")


def quoted(text: str) -> str:
    """Escape a text and put it in quotes."""
    return f"'{printable(text)}'"


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], *, below: Sequence[str] | None = None) -> list[str]:
    """Format a table: numbers right-aligned, all else left-aligned; ``below`` has a line to print under each row."""
    cells = [["-" if each is None else printable(str(each)) for each in row] for row in rows]
    right = [all(_NUMBER.fullmatch(row[column]) for row in cells) for column in range(len(heads))]
    texts = [list(heads), *cells]
    widths = [max(len(row[column]) for row in texts) for column in range(len(heads))]
    lines = []
    for number, row in enumerate(texts):
        padded = (
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(row, widths, right, strict=True)
        )
        lines.append("  ".join(padded).rstrip())
        if number and below is not None:
            lines.append(f"  {below[number - 1]}")
    return lines


def indented(lines: Iterable[str], by: int = 2) -> list[str]:
    """Indent lines that belong to the line above them."""
    return [" " * by + line for line in lines]


def age_text(seconds: int) -> str:
    """``42 s``, ``17 min``, ``5 h``, ``3 d``: in the largest unit with a count of at least two."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def time_text(seconds: int) -> str:
    """Format seconds since 1970 as text, UTC."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))
    except (OverflowError, ValueError, OSError):  # not a time: any program can make such an xid
        return "?"


# --- a consumer


def consumer_lines(consumer_id: str, queues: Sequence[ConsumerQueue], *, spool: str | None = None) -> list[str]:
    """Format a consumer, queue by queue. ``spool``: where its state is, if it is not on the broker."""
    if not queues:
        where = "the broker has" if spool is None else f"the spool {quoted(shown_location(spool))} has"
        return [f"consumer {quoted(consumer_id)}: {where} no state of it"]
    lines = [f"consumer {quoted(consumer_id)}"]
    for each in queues:
        lines += ["", *_consumer_queue(each)]
    return lines


def _consumer_queue(each: ConsumerQueue) -> list[str]:
    found, state = each.found, each.found.state
    of = "" if state is None else f" of queue {quoted(state.queue)}"
    lines = [f"state {each.names.index}{of}, in {found.queue}", *indented(_standing(found))]
    if state is None:
        return lines
    finished = (
        "nothing yet"
        if state.finished is None
        else f"everything before position {state.finished.position:,} of epoch {state.finished.epoch}"
    )
    lines += indented([f"epoch {state.epoch}, next sequence {state.sequence}, finished: {finished}"])
    if each.elsewhere and each.record is not None:
        lines += indented([f"it is of another broker or virtual host: this one has no exchange {each.record.anchor}"])
    if each.record is not None:
        lines += indented(
            [
                f"acknowledgements in doubt: of {each.in_doubt:,} message(s) in {len(each.record.doubts)} batch(es)",
                f"messages that came again: {each.record.recognised:,} recognised and dropped",
                f"messages that were read although they look like accepted ones: {each.record.alike:,}",
            ]
        )
    location = printable(shown_location(each.location or ""))
    if each.location not in {None, state.spool}:
        location += f" (the state says {printable(shown_location(state.spool))})"
    if not state.owned:
        return [*lines, *indented([f"no batch is owned; spool {location}"])]
    batches = "1 batch is" if len(state.owned) == 1 else f"{len(state.owned)} batches are"
    lines += indented([f"{batches} owned; spool {location}"])
    rows = [
        (
            file.batch.sequence,
            file.batch.epoch,
            f"{file.batch.begin:,}-{file.batch.end:,}",
            f"{file.batch.count:,}",
            f"{file.batch.nbytes:,}",
            file.spool,
        )
        for file in each.files
    ]
    heads = ("sequence", "epoch", "positions", "rows", "bytes", "file in spool")
    below = [_file_line(file.batch) for file in each.files]
    lines += indented(table(heads, rows, below=below), 4)
    problems = dict.fromkeys(file.problem for file in each.files if file.problem)  # each once
    return [*lines, *indented(map(printable, problems), 4)]


def _file_line(batch: OwnedBatch) -> str:
    aside = f", set aside: {', '.join(map(str, batch.skipped_positions))}" if batch.skipped else ""
    return f"{printable(batch.file)}{aside}"


def _standing(found: Found[Any]) -> list[str]:
    lines = ["held by a live query" if found.held else "not in use"]
    if not found.exists:
        lines.append("the queue does not exist")
    elif found.problem and not (found.held and found.body is None):
        lines.append(printable(found.problem))
    return lines


# --- a writer


def writer_lines(writer: WriterStatus, now: float) -> list[str]:
    """Format a writer: its decision, its markers, its branches, and those of others."""
    name = quoted(writer.names.identity)
    lines = [*state_lines(writer), "", *branch_lines(writer.prepared, now, f"prepared branches of writer {name}")]
    return [*lines, "", *branch_lines(writer.others, now, "other prepared branches")] if writer.others else lines


def state_lines(writer: WriterStatus) -> list[str]:
    """Format the decision of a writer and its markers."""
    name = quoted(writer.names.identity)
    found, state = writer.found, writer.found.state
    if found.exists or found.held:
        lines = [f"writer {name}, state in {found.queue}", *indented(_standing(found))]
    else:
        lines = [f"writer {name}: the broker has no state of it"]
    if state is not None and state.batch < 0:
        lines += indented(["nothing was decided yet"])
    elif state is not None:
        done = "open: branches may still have to be committed" if state.state == OPEN else "done"
        lines += indented([f"batch {state.batch} of query {quoted(state.query_id)}: {done}"])
        rows = [(each.branch.partition, f"{each.branch.rows:,}", each.standing) for each in writer.decisions]
        below = [printable(each.branch.xid) for each in writer.decisions]
        lines += indented(table(("partition", "rows", "branch"), rows, below=below), 4) if rows else []
    if state is not None and state.past:
        lines += indented([f"earlier queries: {len(state.past)}"])
    if writer.markers:
        lines += ["", f"markers left: {len(writer.markers)}"]
        known = [each for each in writer.markers if each.xid]
        marked = [(each.batch, each.partition, f"{each.rows:,}", quoted(each.query_id)) for each in known]
        below = [printable(each.xid) for each in known]
        lines += indented(table(("batch", "partition", "rows", "query"), marked, below=below)) if known else []
        if len(known) < len(writer.markers):
            lines += indented([f"{len(writer.markers) - len(known)} of them are not of amqp_spark"])
    return lines


# --- branches


def branch_lines(prepared: Sequence[BranchStatus], now: float, title: str = "prepared branches") -> list[str]:
    """Format branches as a table, each with its xid below, and the meanings of their standings."""
    if not prepared:
        return [f"{title}: none"]
    rows = []
    for each in prepared:
        branch, age = each.branch, each.age(now)
        rows.append(
            (
                each.standing,
                *((None, None, None) if branch is None else (branch.batch, branch.partition, branch.attempt)),
                "-" if branch is None else time_text(branch.begun),
                "-" if age is None else age_text(age),
                "-" if each.timeout is None else f"{each.timeout} s" if each.timeout else "none",
                "-" if each.transactional_id is None else quoted(each.transactional_id),
            )
        )
    heads = ("standing", "batch", "partition", "attempt", "begun (UTC)", "age", "timeout", "transactionalId")
    lines = [f"{title}: {len(prepared)}", *indented(table(heads, rows, below=[each.text for each in prepared]))]
    shown = {each.standing for each in prepared}
    return lines + indented(f"{standing}: {meaning}" for standing, meaning in MEANINGS.items() if standing in shown)


# --- JSON


def consumer_json(consumer_id: str, queues: Sequence[ConsumerQueue]) -> dict[str, Any]:
    """A consumer as a dictionary for JSON."""
    return {
        "consumer_id": consumer_id,
        "states": [
            {
                "index": each.names.index,
                **_found_json(each.found),
                "spool": None if each.location is None else shown_location(each.location),
                "files": [
                    {
                        "file": file.batch.file,
                        "rows": file.batch.count,
                        "bytes": file.batch.nbytes,
                        "in_spool": file.spool,
                        "problem": file.problem or None,
                    }
                    for file in each.files
                ],
                **_record_json(each),
            }
            for each in queues
        ],
    }


def _record_json(each: ConsumerQueue) -> dict[str, Any]:
    if each.record is None:
        return {}
    return {
        "in_doubt": {"messages": each.in_doubt, "files": list(each.record.doubts)},
        "recognised": each.record.recognised,
        "alike": each.record.alike,
        "anchor": each.record.anchor or None,
        "elsewhere": each.elsewhere,
    }


def writer_json(writer: WriterStatus, now: float) -> dict[str, Any]:
    """A writer as a dictionary for JSON."""
    return {
        "transactional_id": writer.names.identity,
        **_found_json(writer.found),
        "decisions": [{"xid": each.branch.xid, "standing": each.standing} for each in writer.decisions],
        "markers": [stored(each) for each in writer.markers],
        "prepared": branches_json(writer.prepared, now),
        "others": branches_json(writer.others, now),
    }


def branches_json(prepared: Iterable[BranchStatus], now: float) -> list[dict[str, Any]]:
    """Branches as dictionaries for JSON."""
    return [
        {
            "xid": each.text,
            "standing": each.standing,
            "transactional_id": each.transactional_id,
            "batch": None if each.branch is None else each.branch.batch,
            "partition": None if each.branch is None else each.branch.partition,
            "attempt": None if each.branch is None else each.branch.attempt,
            "begun": None if each.branch is None else each.branch.begun,
            "age_s": each.age(now),
            "timeout_s": each.timeout,
        }
        for each in prepared
    ]


def _found_json(found: Found[Any]) -> dict[str, Any]:
    return {
        "state_queue": found.queue,
        "exists": found.exists,
        "held": found.held,
        "problem": found.problem or None,
        "state": None if found.state is None else _stored_without_secrets(found.state),
    }


def _stored_without_secrets(state: Any) -> dict[str, Any]:
    value = stored(state)
    return value | {"spool": shown_location(value["spool"])} if "spool" in value else value
