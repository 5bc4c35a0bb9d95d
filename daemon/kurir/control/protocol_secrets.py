"""The part of the API's table that is about the secrets of users."""

from __future__ import annotations

from typing import Final

from kurir.control.endpoint import HEARS, WRITES, Endpoint, Media, Reply, Who, shows
from kurir.control.parameters import Owned, SecretDocument, SecretsDocument, SecretValue

_CHANGES: Final = ("forbidden", *HEARS, *WRITES)

SECRETS: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        name="list_secrets",
        verb="GET",
        path="/v1/secrets",
        who=Who.OWNER,
        summary="List one's secrets: names and origins, never values",
        query=Owned,
        replies=shows(SecretsDocument),
        refusals=("forbidden", "invalid"),
    ),
    Endpoint(
        name="put_secret",
        verb="PUT",
        path="/v1/secrets/{name}",
        who=Who.OWNER,
        summary="Store a secret, or replace it; jobs that wait for it go",
        query=Owned,
        takes={Media.JSON: SecretValue},
        replies=(Reply(201, (SecretDocument,)), Reply(200, (SecretDocument,))),
        refusals=("quota_exceeded", *_CHANGES),
    ),
    Endpoint(
        name="delete_secret",
        verb="DELETE",
        path="/v1/secrets/{name}",
        who=Who.OWNER,
        summary="Remove a secret; jobs that refer to it wait",
        query=Owned,
        replies=(Reply(204),),
        refusals=("not_found", *_CHANGES),
    ),
)
