"""Handlers for users who are gone."""

from __future__ import annotations

from typing import Final

from kurir.control import answers
from kurir.control.answers import Answer
from kurir.control.call import Call
from kurir.control.protocol_owners import Forgetting, Moving
from kurir.domain.errors import Refused

_MOST: Final = 2**32 - 1
_DIGITS: Final = 10


async def list_owners(call: Call) -> Answer:
    """Everybody who has something."""
    return answers.document(200, await call.services.owners.all_of_them())


async def forget_owner(call: Call) -> Answer:
    """Give up all that a user has."""
    change = call.services.owners.forget(call.peer, _uid(call), dry_run=call.told(Forgetting).dry_run)
    return answers.document(200, await change)


async def move_owner(call: Call) -> Answer:
    """Give all that a user has to another one."""
    said = call.told(Moving)
    return answers.document(200, await call.services.owners.move(_uid(call), said.to, dry_run=said.dry_run))


def _uid(call: Call) -> int:
    text = call.parameters["uid"]
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS and int(text) <= _MOST):
        raise Refused("not_found", "there is no such user: a uid is a number")
    return int(text)
