"""What tests read in the documents: code blocks with their marks, links and anchors, commands with their options.

A block of Python is run by ``tests/spark/test_document_blocks.py``, unless a comment before it says otherwise:
``<!-- not run: WHY -->``, or ``<!-- run by tests/... -->`` where a test of its own does it. All other blocks have one.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").glob("*.md"))

_BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*) -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE
)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class Block:
    """A code block of a document.

    Args:
        document: path from the root of the repository.
        line: of its first line of code.
        language: after the fence, or nothing.
        code: with the end of its last line.
        mark: content of the comment before the block, or nothing.
    """

    document: str
    line: int
    language: str
    code: str
    mark: str

    @property
    def runs_here(self) -> bool:
        """Whether it is Python without a mark."""
        return self.language == "python" and not self.is_marked

    @property
    def is_marked(self) -> bool:
        """Whether its mark says why it is not run here."""
        return self.mark.startswith(("not run: ", "run by "))

    def compiled_from(self, code: str) -> str:
        """Return a changed form of the code with empty lines before it: a traceback has the line of the document."""
        return "\n" * (self.line - 1) + code


def blocks(path: Path, language: str | None = None) -> list[Block]:
    """Code blocks of a document, all or those of a language, in their order."""
    text = path.read_text(encoding="utf-8")
    found = [
        Block(
            str(path.relative_to(ROOT)),
            text.count("\n", 0, match.start("code")) + 1,
            match["language"],
            match["code"],
            match["mark"] or "",
        )
        for match in _BLOCK.finditer(text)
    ]
    return [block for block in found if language in {None, block.language}]


def prose(path: Path) -> str:
    """Text of a document without its code blocks."""
    return _BLOCK.sub("", path.read_text(encoding="utf-8"))


def anchors(path: Path) -> set[str]:
    """Anchors of a document's headings, as GitHub and the site make them."""
    heads = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def links(path: Path) -> list[str]:
    """Targets of a document's links and pictures that are in the repository."""
    return [target for target in _LINK.findall(prose(path)) if not target.startswith("https://")]


def shell_commands(path: Path) -> Iterator[list[str]]:
    """The commands in the shell blocks of a document, as words."""
    for block in blocks(path, "sh"):
        for line in block.code.replace("\\\n", " ").splitlines():
            yield from _commands(line)


def _commands(line: str) -> Iterator[list[str]]:
    words: list[str] = []
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|(){}")
    lexer.whitespace_split = True
    for word in lexer:
        if set(word) <= set(";&|(){}"):
            if words:
                yield words
            words = []
        else:
            words.append(word)
    if words:
        yield words
