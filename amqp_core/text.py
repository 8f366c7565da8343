"""Check that a text can be encoded in UTF-8, without an exception that contains the text."""

from __future__ import annotations

import re

_SURROGATE = re.compile("[\ud800-\udfff]")

NOT_UTF8 = (
    "is not text in UTF-8: it holds a byte that could not be decoded when it was read, from the environment as a rule; "
    "write it in UTF-8"
)


def is_utf8(text: str) -> bool:
    """Whether ``text`` contains no surrogate, which Python uses for each byte that it cannot decode.

    ``text.encode()`` would detect one, too, but with a UnicodeEncodeError whose ``repr`` contains the text.
    """
    return _SURROGATE.search(text) is None
