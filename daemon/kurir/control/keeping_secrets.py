"""Handlers of the secrets of users. Nothing here answers with a value."""

from __future__ import annotations

from kurir.control import answers
from kurir.control.answers import Answer
from kurir.control.call import Call
from kurir.control.parameters import Owned, SecretDocument, SecretsDocument, SecretValue
from kurir.domain.errors import Refused, StoreFailing


async def list_secrets(call: Call) -> Answer:
    """Names and origins of one's own; of everybody's for administrators."""
    everybody = call.peer.admin and call.asked(Owned).owner is None
    found = call.services.own_secrets.of(None if everybody else _owner(call))
    return answers.document(200, SecretsDocument([SecretDocument(n, owner, list(o)) for owner, n, o in found]))


async def put_secret(call: Call) -> Answer:
    """Store a secret or replace it. On the disk when this answers."""
    owner, name, said = _owner(call), call.parameters["name"], call.told(SecretValue)
    try:
        new, origins = await call.services.own_secrets.put(owner, name, said.value, said.origins)
    except StoreFailing as fault:
        raise call.services.storage.refusal(fault) from fault
    return answers.document(201 if new else 200, SecretDocument(name, owner, list(origins)))


async def delete_secret(call: Call) -> Answer:
    """Remove a secret."""
    try:
        await call.services.own_secrets.remove(_owner(call), call.parameters["name"])
    except StoreFailing as fault:
        raise call.services.storage.refusal(fault) from fault
    return answers.Whole(204, kind=None)


def _owner(call: Call) -> int:
    """Whose secrets are meant. Raises Refused `forbidden` for somebody else's."""
    owner = call.asked(Owned).owner
    if owner is None or owner == call.peer.uid:
        return call.peer.uid
    if not call.peer.admin:
        raise Refused("forbidden", "the secrets of others are for administrators")
    return owner
