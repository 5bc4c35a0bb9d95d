"""Secrets of users: the calls of the API, for `Client.run` and `AsyncClient.run` alike.

kurird.run(secrets.put("token", value, ["https://api.example.com"]))
kurird.post("https://api.example.com/events", {"n": 1}, headers={"Authorization": "Bearer {secret:token}"})
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kurir.client.call import JSON, Call, Repeat, document_of, get
from kurir.client.submission import encode_json
from kurir.client.targets import segment, with_query

_ALL = "/v1/secrets"


def listing(owner: int | None = None) -> Call[dict[str, Any]]:
    """`{"secrets": [{"name", "owner", "origins"}]}`; nobody reads a value. `owner` is for administrators."""
    return get("list secrets", _target(None, owner))


def put(name: str, value: str, origins: Sequence[str], owner: int | None = None) -> Call[dict[str, Any]]:
    """Store a secret, or replace it: it is sent to these origins alone."""
    return Call(
        purpose=f"store the secret {name}",
        method="PUT",
        target=_target(name, owner),
        read=document_of,
        body=encode_json({"value": value, "origins": list(origins)}, "secret"),
        headers=JSON,
        repeat=Repeat.SAFE,
    )


def remove(name: str, owner: int | None = None) -> Call[None]:
    """Remove a secret; jobs that refer to it wait."""
    return Call(
        purpose=f"remove the secret {name}", method="DELETE", target=_target(name, owner), read=lambda answer: None
    )


def _target(name: str | None, owner: int | None) -> str:
    path = _ALL if name is None else f"{_ALL}/{segment(name)}"
    return with_query(path, {} if owner is None else {"owner": owner})
