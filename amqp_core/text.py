"""Whether a text can be written in UTF-8, found out without an exception that carries the text."""

from __future__ import annotations

import re

_SURROGATE = re.compile("[\ud800-\udfff]")

NOT_UTF8 = (
    "is not text in UTF-8: it holds a byte that could not be decoded when it was read, from the environment as a rule; "
    "write it in UTF-8"
)


def is_utf8(text: str) -> bool:
    """Whether ``text`` holds no surrogate: Python puts one for each byte that it cannot decode.

    ``text.encode()`` would say so as well, by a UnicodeEncodeError whose ``repr`` holds the text.
    """
    return _SURROGATE.search(text) is None
