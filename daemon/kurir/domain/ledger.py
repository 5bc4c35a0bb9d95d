"""Why a job was dropped: removed, or given up, without having been delivered."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Drop(StrEnum):
    """The reasons in the ledger of dropped jobs. Part of the public interface."""

    QUEUE_FULL = "queue_full"  # it gave way to a newer one: when_full = "drop_oldest"
    DEAD_TOO_LONG = "dead_too_long"  # retention.dead
    TOO_MANY_DEAD = "too_many_dead"  # retention.dead_count
    DISCARDED = "discarded"  # a person gave the dead letter up
    OWNER_FORGOTTEN = "owner_forgotten"  # a person forgot its owner


_SENTENCES: Final = {
    Drop.QUEUE_FULL: "the queue was full",
    Drop.DEAD_TOO_LONG: "it was dead for too long",
    Drop.TOO_MANY_DEAD: "too many are dead",
    Drop.DISCARDED: "it was discarded",
    Drop.OWNER_FORGOTTEN: "its owner was forgotten",
}


def sentence(why: Drop) -> str:
    """The reason in words for people."""
    return _SENTENCES[why]
