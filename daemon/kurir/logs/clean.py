"""Foreign text made fit for a line: one line long, bounded, and nothing in it that a terminal or an encoder obeys."""

from __future__ import annotations

from typing import Final

LONGEST: Final = 500
"""The most characters of one value."""

Value = str | int | float | bool | None


def clean(text: str, longest: int = LONGEST) -> str:
    """The text itself where it is harmless; else cut, with what is not printable (lone surrogates too) as escapes."""
    if len(text) <= longest and text.isprintable():
        return text
    shown = "".join(char if char.isprintable() else _escape(char) for char in text[:longest])
    return shown if len(text) <= longest and len(shown) <= longest else shown[: longest - 1] + "…"


def clean_value(value: object) -> Value:
    """Any value as one that a line can hold."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if -(1 << 63) <= value < 1 << 64 else "a huge number"
    try:
        return clean(value if type(value) is str else str(value))
    except Exception:  # noqa: BLE001 - the __str__ of a foreign exception may do anything; the line is still wanted
        return f"({type(value).__name__} that cannot be shown)"


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
