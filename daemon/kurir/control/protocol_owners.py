"""The part of the API's table that is about users who are gone, and what may be said there."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from kurir.control.endpoint import Endpoint, Media, Reply, Who
from kurir.control.parameters import Uid
from kurir.services.showing.documents import OwnerChangeDocument, OwnersDocument


class Forgetting(Struct, frozen=True, forbid_unknown_fields=True):
    """Whether only to say what there is."""

    dry_run: bool = False


class Moving(Struct, frozen=True, forbid_unknown_fields=True):
    """Who is to have it, and whether only to say what there is."""

    to: Uid
    dry_run: bool = False


_REFUSALS: Final = (
    "forbidden",
    "malformed",
    "not_found",
    "invalid",
    "exists",
    "too_large",
    "request_timeout",
    "storage_failing",
    "disk_full",
)

ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        name="list_owners",
        verb="GET",
        path="/v1/owners",
        who=Who.ADMIN,
        summary="List the users who have something, and whether the system still knows them",
        replies=(Reply(200, (OwnersDocument,)),),
        refusals=("forbidden",),
    ),
    Endpoint(
        name="forget_owner",
        verb="POST",
        path="/v1/owners/{uid}/forget",
        who=Who.ADMIN,
        summary="Give up and remove all that a user has",
        takes={Media.JSON: Forgetting},
        replies=(Reply(200, (OwnerChangeDocument,)),),
        refusals=_REFUSALS,
    ),
    Endpoint(
        name="move_owner",
        verb="POST",
        path="/v1/owners/{uid}/move",
        who=Who.ADMIN,
        summary="Give all that a user has to another one",
        takes={Media.JSON: Moving},
        replies=(Reply(200, (OwnerChangeDocument,)),),
        refusals=_REFUSALS,
    ),
)
