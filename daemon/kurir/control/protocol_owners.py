"""The part of the API's table that is about users who are gone, and what may be said there."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from kurir.control.endpoint import HEARS, WRITES, Endpoint, Media, Who, shows
from kurir.control.parameters import Uid
from kurir.services.showing.owner_documents import OwnerChangeDocument, OwnersDocument


class Forgetting(Struct, frozen=True, forbid_unknown_fields=True):
    """Whether only to say what there is."""

    dry_run: bool = False


class Moving(Struct, frozen=True, forbid_unknown_fields=True):
    """Who is to have it, and whether only to say what there is."""

    to: Uid
    dry_run: bool = False


_REFUSALS: Final = ("forbidden", "not_found", "exists", *HEARS, *WRITES)

ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        name="list_owners",
        verb="GET",
        path="/v1/owners",
        who=Who.ADMIN,
        summary="List the users who have something, and whether the system still knows them",
        replies=shows(OwnersDocument),
        refusals=("forbidden",),
    ),
    Endpoint(
        name="forget_owner",
        verb="POST",
        path="/v1/owners/{uid}/forget",
        who=Who.ADMIN,
        summary="Give up and remove all that a user has",
        takes={Media.JSON: Forgetting},
        replies=shows(OwnerChangeDocument),
        refusals=_REFUSALS,
    ),
    Endpoint(
        name="move_owner",
        verb="POST",
        path="/v1/owners/{uid}/move",
        who=Who.ADMIN,
        summary="Give all that a user has to another one",
        takes={Media.JSON: Moving},
        replies=shows(OwnerChangeDocument),
        refusals=_REFUSALS,
    ),
)
