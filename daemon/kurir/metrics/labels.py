"""What may stand in a label: configured names and our own words. Everything else becomes one of two common ones.

A label value that clients can choose would make a series of each; a scraper keeps them all for weeks.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from kurir.domain.job import ADHOC_TOPIC, OUTBOX_PREFIX

OTHER: Final = "other"
ADHOC: Final = "adhoc"
LOCAL: Final = "local"
"""Where the jobs of a topic go that local consumers pull."""

_WORD: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")


@dataclass(frozen=True, slots=True)
class Known:
    """The names that are configured now; after a reload others are, and series of the old ones fold."""

    topics: Collection[str]
    destinations: Collection[str]

    def topic(self, name: str) -> str:
        """A topic as a label. The outbox of a known destination is known."""
        if name in self.topics or name == ADHOC_TOPIC:
            return name
        if name.startswith(OUTBOX_PREFIX) and name[len(OUTBOX_PREFIX) :] in self.destinations:
            return name
        return OTHER

    def destination(self, name: str) -> str:
        """A destination as a label. An origin (of an ad-hoc job, with or without its owner) is none of the known."""
        if name in self.destinations:
            return name
        if not name:
            return LOCAL
        return ADHOC if name == ADHOC or "://" in name else OTHER


def word(text: str) -> str:
    """A word of our own (a code, a reason, a cause) as a label; what does not look like one is not repeated."""
    return text if _WORD.fullmatch(text) else OTHER
