"""Where in the configuration one is, and what was found wrong there.

All problems of one load are collected, each with the file that said it: whoever mends a remote box wants one round.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from kurir.settings.errors import Problem, SettingsRefused

Key = tuple[str, ...]
Table = Mapping[str, object]

_BARE = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SHOWN = 64
_EMPTY: Table = {}


def dotted(key: Key) -> str:
    """A key as TOML writes it: parts that need it are quoted, long ones are cut."""
    return ".".join(part if _BARE.fullmatch(part) else json.dumps(part[:_SHOWN]) for part in key)


@dataclass(slots=True)
class Problems:
    """The list that a load gathers. `origins` says which file set a key, or the table it stands in."""

    origins: Mapping[Key, str]
    found: list[Problem] = field(default_factory=list)

    def add(self, key: Key, reason: str, *, index: int | None = None) -> None:
        shown = dotted(key) if index is None else f"{dotted(key)}[{index}]"
        self.found.append(Problem(file=self._origin(key), key=shown, reason=reason))

    def raise_if_any(self) -> None:
        if self.found:
            raise SettingsRefused(self.found)

    def _origin(self, key: Key) -> str:
        for length in range(len(key), 0, -1):
            if (file := self.origins.get(key[:length])) is not None:
                return file
        return self.origins.get((), "")


@dataclass(frozen=True, slots=True)
class Scope:
    """A place in the document: its key, and the table as it was written (what is not written is a default)."""

    problems: Problems
    key: Key = ()
    table: Table = field(default_factory=dict)

    def within(self, name: str) -> Scope:
        """The place of a table below this one."""
        below = self.table.get(name)
        return Scope(self.problems, (*self.key, name), below if isinstance(below, Mapping) else _EMPTY)

    def says(self, name: str) -> bool:
        """Whether somebody wrote this key, be it with the value of its default."""
        return name in self.table

    def refuse(self, name: str | None, reason: str) -> None:
        """Records a problem with a key of this place, or with the place itself (None)."""
        self.check(name, reason)

    def check(self, name: str | None, reason: str, *, index: int | None = None) -> None:
        """Records a problem if there is a reason; the empty one means that all is well."""
        if reason:
            self.problems.add(self.key if name is None else (*self.key, name), reason, index=index)
