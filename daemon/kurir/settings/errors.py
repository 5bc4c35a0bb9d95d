"""What is said when a configuration cannot be used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kurir.domain.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that cannot be used. Its reason never quotes a value that could be a credential."""

    file: str  # where it was said; empty: nowhere, it is missing
    key: str  # dotted, as in TOML; empty: the file itself
    reason: str  # with the cure after a semicolon

    def __str__(self) -> str:
        subject = " in ".join(part for part in (self.key, self.file) if part)
        return f"cannot use {subject or 'the configuration'}: {self.reason}"


class SettingsRefused(ConfigurationError):
    """A configuration was read and refused. Holds every problem that was found: one look mends them all."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)
