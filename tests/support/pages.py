"""The pages of the documentation as their tests see them: blocks of code, who types them where, and what they print.

The first line of a block says, after its language, how it is tested:

    ```sh run            typed in a checkout beside `make run`: KURIR_SOCKET is set, .venv/bin is in PATH
    ```sh root           typed as root on a system on which the package is, or is about to be, installed
    ```sh user           typed there by an ordinary user, who is in the group kurir once the page has put them there
    ```sh make           targets of the Makefile: they must exist (CI runs them)
    ```python user       a program instead of commands
    ```c user submit.c   written to that file, for the commands that follow
    ```toml              a configuration that `kurird --check` takes
    ```output            what the block above prints, but for ids, times and sizes; a lone `…` stands for any lines
                         and one within a line for anything there

`root` and `user` may be followed by where they are typed: `debian`, `openrc` or `systemd`; without it: everywhere.
A block stands alone: it shares files with the others, and nothing of the shell's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "packaging" / "docs"
README = ROOT / "README.md"

_FENCE = re.compile(r"^```(?P<head>[^\n]*)\n(?P<text>.*?)^```[ ]*$", re.DOTALL | re.MULTILINE)
TYPED = ("sh", "python", "c")
SCENES = ("run", "root", "user", "make")
PLACES = ("debian", "openrc", "systemd")

VARIABLE = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[47][0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"), "ID"),
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z| [+-]\d{4})|\d\d:\d\d:\d\d"), "TIME"),
    (re.compile(r"\bnow\b|(?:in )?\d+ (?:s|min)\b(?: ago)?"), "WHEN"),
    (re.compile(r"\d+(?:\.\d+)? (?:[KMGT]i)?B\b"), "SIZE"),
)
"""What is another each time, and the word that stands for it."""

ANYTHING = "…"


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code of a page. `output`: what the page says that it prints, if it says so."""

    page: Path
    line: int
    language: str
    marks: tuple[str, ...]
    text: str
    output: str | None = None

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def scene(self) -> str | None:
        """Who types it, if anybody does."""
        return next((mark for mark in self.marks if mark in SCENES), None)

    @property
    def place(self) -> str | None:
        """On which systems alone it is typed."""
        return next((mark for mark in self.marks if mark in PLACES), None)

    @property
    def file(self) -> str | None:
        """The file that a program of C is written to."""
        return self.marks[-1] if self.language == "c" and "." in self.marks[-1] else None


def pages() -> list[Path]:
    """Every page, the README first."""
    return [README, *sorted(DOCS.glob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """The blocks of a page in their order, each with its output."""
    found: list[Block] = []
    for block in _fences(page):
        if block.language == "output" and found:
            last = found.pop()
            block = Block(last.page, last.line, last.language, last.marks, last.text, block.text)
        found.append(block)
    return found


def _fences(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        language, *marks = match["head"].split() or [""]
        yield Block(page, text.count("\n", 0, match.start()) + 1, language, tuple(marks), match["text"])


def neutral(text: str) -> str:
    """The text with a word in place of whatever is another each time."""
    for pattern, word in VARIABLE:
        text = pattern.sub(word, text)
    return text


def difference(shown: str, printed: str) -> str | None:
    """Where a page shows something else than was printed, in words; None if it does not."""
    wanted, got = _lines(shown), _lines(printed)
    pattern = "".join(r"(?:.*\n)*?" if line == ANYTHING else f"{_line(line)}\\n" for line in wanted)
    if re.fullmatch(pattern, "".join(f"{line}\n" for line in got)):
        return None
    return f"the page shows\n{shown}\nbut this was printed:\n{printed}"


def _lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in neutral(text).splitlines() if line.strip()]


def _line(line: str) -> str:
    return ".*".join(re.escape(piece) for piece in line.split(ANYTHING))
