"""Conditions of errors, in one grammar: ``[AMQP_NAME] What is wrong. What to do.``

A table of conditions is a subclass of :class:`Condition`; docs/errors.md is generated from all of them. Each text has
at most 40 words; what needs more has it in ``detail``, which only the document shows.
"""

from __future__ import annotations

import re
from enum import Enum, unique
from typing import Final

PREFIX: Final = "AMQP_"
_HEAD: Final = re.compile(rf"\[({PREFIX}\w+)\] ")


class Condition(Enum):
    """One kind of error. A member is called with the fields of its sentences and returns the text of the error.

    Args:
        what: one sentence, with ``{fields}`` as for :meth:`str.format`.
        action: one sentence: how the reader ends the condition. It may have fields, too.
        detail: a paragraph for docs/errors.md: causes, background, longer remedies.
    """

    def __init__(self, what: str, action: str, detail: str = "") -> None:
        self.what = what
        self.action = action
        self.detail = detail

    @property
    def title(self) -> str:
        """Name with prefix, as texts show it."""
        return PREFIX + self.name

    def __call__(self, **fields: object) -> str:
        """Return the text for these fields.

        Raises:
            KeyError: a field is missing; a test compares every call in the code with its sentences.
        """
        return f"[{self.title}] {self.what.format(**fields)} {self.action.format(**fields)}"


def condition_of(error: BaseException | str) -> str | None:
    """Name of the condition at the beginning of an error's text, such as ``AMQP_QUEUE_NOT_FOUND``; ``None`` if none."""
    match = _HEAD.match(str(error))
    return match[1] if match else None


def reason(error: BaseException | str) -> str:
    """Text of an error without the name of its condition and the last full stop: to be quoted in another sentence."""
    return _HEAD.sub("", str(error), count=1).removesuffix(".")


@unique
class CoreCondition(Condition):
    """Conditions of amqp_core."""

    # --- connection and login

    # --- use of the client

    # --- protocol

    # --- answers of the broker

    # --- messages and values
