"""What the doctor finds, and the report of it: as text, JSON, HTML, or a DataFrame of pandas."""

from __future__ import annotations

import html
import json
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from amqp_core.error_conditions import condition_of
from amqp_core.errors import AmqpError
from amqp_core.printable import printable
from amqp_spark.cli.errors import EXIT_BROKER, EXIT_DONE, EXIT_FAILED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pandas as pd


class Status(StrEnum):
    """How a finding is. ``SKIPPED``: not tried, or not offered and not asked for; the value says which."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    SKIPPED = "skipped"


_SYMBOLS: Final = {Status.OK: "✓", Status.WARNING: "!", Status.ERROR: "✗", Status.SKIPPED: "–"}  # noqa: RUF001 - a dash
_PLAIN: Final = {Status.OK: "ok", Status.WARNING: "!!", Status.ERROR: "XX", Status.SKIPPED: "--"}
_COLOURS: Final = {Status.OK: "#1a7f37", Status.WARNING: "#9a6700", Status.ERROR: "#cf222e", Status.SKIPPED: "#6e7781"}
EXIT_INTERRUPTED: Final = 130
_MOST_TEXT: Final = 200
"""Characters of the text of an unexpected error."""
_COLUMNS: Final = ("section", "name", "status", "value", "advice")


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. Immutable: any thread may use it.

    Attributes:
        section: what it is about, such as ``queue 'ticks'``.
        name: what was looked at.
        status: how it is.
        value: what was found.
        advice: what to do; empty if there is nothing to do.
        exit_code: of the command because of it; 0 unless it is an error.
    """

    section: str
    name: str
    status: Status
    value: str
    advice: str = ""
    exit_code: int = EXIT_DONE


class Report:
    """All findings, in their order. One thread adds findings; a report that is complete does not change any more.

    Attributes:
        title: what was examined, without secrets.
        findings: the findings.
        is_stopped: whether SIGINT ended the examination, so that findings are missing.

    Args:
        secrets: what texts of unexpected errors must not show.
    """

    def __init__(self, title: str, *, secrets: Iterable[str] = ()) -> None:
        self.title = title
        self.findings: list[Finding] = []
        self.is_stopped = False
        self._secrets = tuple(secret for secret in secrets if secret)

    def ok(self, section: str, name: str, value: object) -> None:
        """Add what is as it should be."""
        self.add(section, name, Status.OK, value)

    def warn(self, section: str, name: str, value: object, advice: str) -> None:
        """Add what works, and may surprise."""
        self.add(section, name, Status.WARNING, value, advice)

    def fail(self, section: str, name: str, value: object, advice: str, *, exit_code: int = EXIT_BROKER) -> None:
        """Add what does not work."""
        self.add(section, name, Status.ERROR, value, advice, exit_code=exit_code)

    def skip(self, section: str, name: str, value: object, advice: str = "") -> None:
        """Add what was not tried, or is not offered and not asked for."""
        self.add(section, name, Status.SKIPPED, value, advice)

    def refused(
        self, section: str, name: str, error: BaseException, *, status: Status = Status.ERROR, advice: str = ""
    ) -> None:
        """Add an error: its first sentence is the value, its second one the advice, unless ``advice`` is given."""
        value, remedy = told(error)
        self.add(section, name, status, value, advice or remedy)

    def unexpected(self, section: str, name: str, error: Exception, *, status: Status = Status.ERROR) -> None:
        """Add an error that the doctor does not know: its class and the first line of its text."""
        text = str(error).partition("\n")[0]
        for secret in self._secrets:
            text = text.replace(secret, "<redacted>")
        value = f"unexpected error {type(error).__name__}: {text[:_MOST_TEXT] or 'without a text'}"
        self.add(section, name, status, value, "Report it as a fault of amqp-spark", exit_code=EXIT_FAILED)

    @contextmanager
    def examining(self, section: str, *, name: str = "examination", status: Status = Status.ERROR) -> Iterator[None]:
        """Within it any error becomes a finding of the section, so that the examination can go on after it."""
        try:
            yield
        except AmqpError as error:
            self.refused(section, name, error, status=status)
        except Exception as error:  # noqa: BLE001 - what is not expected must not take the other findings away
            self.unexpected(section, name, error, status=status)

    def add(
        self,
        section: str,
        name: str,
        status: Status,
        value: object,
        advice: str = "",
        *,
        exit_code: int = EXIT_BROKER,
    ) -> None:
        """Add a finding of any status; ``exit_code`` counts for errors.

        A broker, or a certificate, may have chosen parts of the texts: they must not move the cursor of a terminal, nor
        look like further findings.
        """
        code = exit_code if status is Status.ERROR else EXIT_DONE
        self.findings.append(
            Finding(printable(section), printable(name), status, printable(str(value)), printable(advice), code)
        )

    @property
    def exit_code(self) -> int:
        """That of the first error, as docs/operations.md lists them for the jobs; 0 without one; 130 if stopped."""
        if self.is_stopped:
            return EXIT_INTERRUPTED
        return next((each.exit_code for each in self.findings if each.exit_code), EXIT_DONE)

    def of(self, section: str, name: str) -> Finding | None:
        """The finding of this name in a section."""
        found = (each for each in self.findings if (each.section, each.name) == (section, name))
        return next(found, None)

    def is_wrong(self, section: str, *names: str) -> bool:
        """Whether one of these findings of a section is an error."""
        found = (self.of(section, name) for name in names)
        return any(each is not None and each.status is Status.ERROR for each in found)

    def ordered(self) -> list[Finding]:
        """The findings, those of one section together, in the order in which the sections were first looked at."""
        sections = list(dict.fromkeys(each.section for each in self.findings))
        return sorted(self.findings, key=lambda each: sections.index(each.section))

    def lines(self, *, plain: bool = False) -> list[str]:
        """The report as text; ``plain``: in ASCII, for a terminal that cannot show more."""
        symbols = _PLAIN if plain else _SYMBOLS
        width = max((len(each.name) for each in self.findings), default=0)
        lines = [self.title]
        section = ""
        for each in self.ordered():
            if each.section != section:
                section = each.section
                lines.append(section)
            lines.append(f"  {symbols[each.status]} {each.name:<{width}}  {each.value}")
            if each.advice:
                lines.append(
                    f"  {' ' * len(symbols[each.status])} {'':<{width}}  {'->' if plain else '→'} {each.advice}"
                )
        return [*lines, self.summary()]

    def summary(self) -> str:
        """The numbers of findings by status, as one line."""
        counts = {status: sum(each.status is status for each in self.findings) for status in Status}
        return ", ".join(
            f"{counts[status]} {word}"
            for status, word in (
                (Status.OK, "fine"),
                (Status.WARNING, "to look at"),
                (Status.ERROR, "wrong"),
                (Status.SKIPPED, "not tried or not offered"),
            )
            if counts[status]
        )

    def json(self, *, plain: bool = False) -> str:
        """The report for programs: title, exit code, and the findings in their order; ``plain``: in ASCII."""
        found: dict[str, Any] = {
            "title": self.title,
            "exit_code": self.exit_code,
            "findings": [
                {key: value for key, value in asdict(each).items() if key in _COLUMNS} for each in self.ordered()
            ],
        }
        return json.dumps(found, indent=1, ensure_ascii=plain)

    def frame(self) -> pd.DataFrame:
        """The findings as a DataFrame: columns section, name, status, value, advice."""
        import pandas as pd  # noqa: PLC0415 - half a second that the command line saves

        rows = [[str(getattr(each, name)) for name in _COLUMNS] for each in self.ordered()]
        return pd.DataFrame(rows, columns=list(_COLUMNS))

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        """The table that a notebook shows."""
        return "".join(
            [
                f"<table><caption>{html.escape(self.title)}: {html.escape(self.summary())}</caption>",
                "<tr><th></th><th>about</th><th>finding</th><th>value</th><th>what to do</th></tr>",
                *(_row(each) for each in self.ordered()),
                "</table>",
            ]
        )


def told(error: BaseException) -> tuple[str, str]:
    """What is wrong, and what to do, out of the text of an error: ``[AMQP_NAME] What is wrong. What to do.``"""
    text, name = str(error).partition("\n")[0], condition_of(error)
    if name is None:
        return text or type(error).__name__, ""
    text = text[len(name) + len("[] ") :]
    problem, _, remedy = text.rpartition(". ")
    return (problem, remedy.removesuffix(".")) if problem else (text.removesuffix("."), "")


def listed(words: Iterable[object]) -> str:
    """Words with commas between them."""
    return ", ".join(str(word) for word in words)


def _row(each: Finding) -> str:
    cells = [
        f'<td style="color:{_COLOURS[each.status]}" title="{each.status}">{_SYMBOLS[each.status]}</td>',
        *(
            f'<td style="text-align:left">{html.escape(text)}</td>'
            for text in (each.section, each.name, each.value, each.advice)
        ),
    ]
    return f"<tr>{''.join(cells)}</tr>"
