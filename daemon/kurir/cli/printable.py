"""Foreign text made safe for a terminal: what a job, a server or a header says may hold escape sequences."""

from __future__ import annotations

import json
import re
import sys

# Joiners shape words of several scripts and do nothing else; a no-break space is a space.
_HARMLESS = frozenset("\u200c\u200d\u00a0")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# What JSON lets through in strings: the controls above ASCII, line separators, bidirectional overrides, surrogates.
_UNSAFE_IN_JSON = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def printable(value: object) -> str:
    """One line of text without anything that a terminal would obey; such characters are shown as escapes."""
    text = value if isinstance(value, str) else str(value)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in _HARMLESS else _escape(char) for char in text)


def printable_lines(text: str) -> str:
    """The same for text of several lines: line breaks and tabs stay."""
    return "\n".join("\t".join(printable(cell) for cell in line.split("\t")) for line in text.split("\n"))


def json_text(document: object, *, indent: int | None = None) -> str:
    """The document as JSON that is the same document to a program and harmless on a terminal."""
    text = json.dumps(
        document,
        ensure_ascii=not _speaks_unicode(),
        indent=indent,
        separators=None if indent else (",", ":"),
    )
    return _UNSAFE_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _escape(char: str) -> str:
    if char in _SHORT:
        return _SHORT[char]
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _speaks_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
