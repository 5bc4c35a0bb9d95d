"""What is shown of users and of all that they have."""

from __future__ import annotations

from msgspec import Struct


class OwnerDocument(Struct, frozen=True, kw_only=True):
    """What a user has: jobs by kind (`live`: pending and leased), their bytes, and other things by name.

    `name` is null for a user whom the system does not know any more.
    """

    uid: int
    name: str | None
    jobs: dict[str, int]
    bytes: int
    also: dict[str, int]


class OwnersDocument(Struct, frozen=True):
    """Everybody who has something."""

    owners: list[OwnerDocument]


class OwnerChangeDocument(Struct, frozen=True, kw_only=True):
    """What became of all that a user had: `count` jobs were removed, or moved to the user `to`.

    `jobs` is what there was. `kept`: jobs that stayed with their owner, and the first of them.
    """

    uid: int
    to: int | None
    dry_run: bool
    count: int
    jobs: dict[str, int]
    also: dict[str, int]
    kept: int = 0
    kept_jobs: list[str] = []
