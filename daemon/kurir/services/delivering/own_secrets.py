"""The secrets of users: each may store values by name, and says to which origins they may be sent.

In the headers of a job with its own URL, {secret:NAME} is the value of its owner's secret, filled in when the request
is sent, and only towards an origin that the owner named. A job that refers to a secret which is not there, or which
is not meant for its origin, waits, and holds up no other job: it stands in a lane of its own (`LaneNeeds.secrets`).

A user's values are taken out of what is kept of that user's own jobs, and of nobody else's: otherwise a stranger
could find out by guessing whether a word is somebody's secret, or make words vanish from another's results.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from kurir.domain import targets
from kurir.domain.errors import Refused
from kurir.system.redaction import Redaction
from kurir.system.secret_folder import NAME, Key, OwnSecret, SecretFolder
from kurir.system.secrets import SecretUnusable

MOST = 64
"""Secrets of one user."""
LARGEST = 4096
"""Bytes of one value, in UTF-8."""
MOST_BYTES = 64 * 1024
"""Bytes of all values of one user."""
MOST_ORIGINS = 16

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_REFERENCE = re.compile(rf"\{{secret:({NAME.pattern})\}}")
_OPENING = "{secret:"
_FORGOTTEN = 2 * MOST
"""Names whose values are still redacted, of one user, before those that are no more are dropped."""


class OwnSecrets:
    """All users' secrets, in memory as on the disk. `changed` is told whose have changed."""

    def __init__(self, folder: SecretFolder) -> None:
        self._folder = folder
        self._secrets: dict[int, dict[str, OwnSecret]] = {}
        self._redactions: dict[int, Redaction] = {}
        self._names: dict[int, int] = {}
        self._lock = asyncio.Lock()  # one change at a time: memory follows the disk in the same order
        self.changed: Callable[[int], None] = lambda owner: None

    def __repr__(self) -> str:
        return f"OwnSecrets(of {len(self._secrets)} users)"

    def load(self) -> list[str]:
        """Read them all, at the start. Returns what is wrong with those that cannot be used, for the log.

        Raises StateDirectoryError.
        """
        found = self._folder.read()
        for (owner, name), secret in found.items():
            self._secrets.setdefault(owner, {})[name] = secret
        for owner in self._secrets:
            self._redactions[owner] = self._redaction_of(owner)
        return [f"the secret {name} of user {owner}: {s.fault}" for (owner, name), s in found.items() if s.fault]

    def of(self, owner: int | None) -> list[tuple[int, str, tuple[str, ...]]]:
        """Owner, name and origins of a user's secrets, or (None) of everybody's. Never a value."""
        owners = sorted(self._secrets) if owner is None else [owner]
        return [(one, name, s.origins) for one in owners for name, s in sorted(self._secrets.get(one, {}).items())]

    async def put(self, owner: int, name: str, value: str, origins: Sequence[str]) -> tuple[bool, tuple[str, ...]]:
        """Store a secret, or replace it. Returns whether it is new, and its origins as they are compared.

        Raises Refused (`invalid`, `quota_exceeded`), DiskFull or StoreFailing; the old one stays then.
        """
        secret = OwnSecret(_checked_value(value), _checked_origins(origins))
        _check_name(name)
        async with self._lock:
            mine = self._secrets.get(owner, {})
            others = [len(one.value.encode()) for key, one in mine.items() if key != name]
            if len(others) >= MOST or sum(others) + len(value.encode()) > MOST_BYTES:
                detail = f"cannot store the secret: a user has at most {MOST}, of {MOST_BYTES // 1024} KiB together"
                raise Refused("quota_exceeded", detail)
            await asyncio.to_thread(self._folder.write, (owner, name), secret)
            new = name not in mine
            self._secrets.setdefault(owner, {})[name] = secret
            await self._learn(owner, name, value)
            self.changed(owner)
            return new, secret.origins

    async def remove(self, owner: int, name: str) -> None:
        """Remove a secret; jobs that refer to it wait. Raises Refused `not_found`, or StoreFailing."""
        async with self._lock:
            if name not in self._secrets.get(owner, {}):
                raise Refused("not_found", f"cannot remove the secret: there is no secret {name[:64]!a}")
            await asyncio.to_thread(self._folder.remove, (owner, name))
            self._drop(owner, name)
            self.changed(owner)

    async def forget(self, owner: int) -> int:
        """Remove all secrets of a user who is gone. Returns how many. Raises StoreFailing."""
        async with self._lock:
            names = list(self._secrets.get(owner, {}))
            try:
                for name in names:
                    await asyncio.to_thread(self._folder.remove, (owner, name))
                    self._drop(owner, name)
            finally:
                self.changed(owner)
            self._redactions.pop(owner, None)
            return len(names)

    def check_move(self, owner: int, to: int) -> None:
        """Raise Refused `exists` if both users have a secret of the same name."""
        if both := sorted(self._secrets.get(owner, {}).keys() & self._secrets.get(to, {}).keys()):
            raise Refused("exists", f"cannot move the secrets: both users have {', '.join(both)}; remove one first")

    async def move(self, owner: int, to: int) -> int:
        """Give all secrets of a user to another one. Returns how many.

        Raises Refused `exists`, before anything is moved, if both have one of the same name, or StoreFailing.
        """
        async with self._lock:
            self.check_move(owner, to)
            mine = self._secrets.get(owner, {})
            names = list(mine)
            try:
                for name in names:
                    await asyncio.to_thread(self._folder.rename, (owner, name), (to, name))
                    secret = mine[name]
                    self._drop(owner, name)
                    self._secrets.setdefault(to, {})[name] = secret
            finally:
                self._redactions[to] = self._redaction_of(to)
                self.changed(owner)
                self.changed(to)
            return len(names)

    def names(self, owner: int, headers: Iterable[tuple[str, str]]) -> tuple[str, ...]:
        """The secrets that the headers of a job refer to, in order. Raises Refused if one of them is not there."""
        found = set()
        for header, value in headers:
            if _OPENING not in value:
                continue
            found.update(mentioned := _REFERENCE.findall(value))
            if value.count(_OPENING) != len(mentioned):
                detail = f"the header {header} holds {{secret: without a name and a closing brace"
                raise Refused("invalid", detail, field=f"headers.{header}")
            for name in mentioned:
                if name not in self._secrets.get(owner, {}):
                    detail = f"the header {header} names a secret that you do not have: {name} (kurirctl secret set)"
                    raise Refused("invalid", detail, field=f"headers.{header}")
        return tuple(sorted(found))

    def missing(self, owner: int, origin: str, names: Iterable[str]) -> str:
        """Why a job that needs these secrets at an origin cannot be sent; empty if it can."""
        for name in names:
            if reason := self._unusable(owner, origin, name):
                return f"needs the secret {name} of its owner: {reason}"
        return ""

    def fill(self, owner: int, origin: str, text: str) -> str:
        """A header's text with the owner's values in place of references. Raises SecretUnusable."""
        return _REFERENCE.sub(lambda match: self._value(owner, origin, match[1]), text)

    def known(self, owner: int) -> bool:
        """Whether this user has, or had, any value to redact."""
        return bool(self._redactions.get(owner))

    def redact(self, owner: int, text: str, *, cut: bool = False) -> str:
        """The text without any value that a secret of this user has or had. `cut`: it may end in the middle of one."""
        redaction = self._redactions.get(owner)
        return text if redaction is None else redaction.redact(text, cut=cut)

    def _value(self, owner: int, origin: str, name: str) -> str:
        if reason := self._unusable(owner, origin, name):
            raise SecretUnusable(name, reason)
        return self._secrets[owner][name].value

    def _unusable(self, owner: int, origin: str, name: str) -> str:
        secret = self._secrets.get(owner, {}).get(name)
        if secret is None:
            return f"it is not there; store it (kurirctl secret set {name} --origin {origin})"
        if secret.fault:
            return f"{secret.fault}; store it again (kurirctl secret set {name})"
        if origin not in secret.origins:
            return f"it may not be sent to {origin}; store it with that origin (kurirctl secret set {name} --origin …)"
        return ""

    async def _learn(self, owner: int, name: str, value: str) -> None:
        """The new value is redacted, and the old one still is: an attempt under way may carry it."""
        self._names[owner] = self._names.get(owner, 0) + 1
        if owner not in self._redactions or self._names[owner] > _FORGOTTEN:
            self._names[owner] = 0
            self._redactions[owner] = await asyncio.to_thread(self._redaction_of, owner)
        else:  # on a thread: many long values take a moment
            await asyncio.to_thread(partial(self._redactions[owner].learn, name, value))

    def _redaction_of(self, owner: int) -> Redaction:
        redaction = Redaction()
        for name, secret in dict(self._secrets.get(owner, {})).items():
            redaction.learn(name, secret.value)
        return redaction

    def _drop(self, owner: int, name: str) -> None:
        mine = self._secrets[owner]
        del mine[name]
        if not mine:
            del self._secrets[owner]


def _check_name(name: str) -> None:
    if NAME.fullmatch(name) is None:
        detail = "the name of a secret has 1 to 64 letters, digits, _, . and -, and begins with none of the last two"
        raise Refused("invalid", detail, field="name")


def _checked_value(value: str) -> str:
    """A value that a header can carry. Its words are in no message."""
    if not value:
        raise Refused("invalid", "the value is empty", field="value")
    if _CONTROL.search(value):
        detail = "the value holds a line break or another control character, which no header may carry"
        raise Refused("invalid", detail, field="value")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise Refused("invalid", "the value holds half of a surrogate pair", field="value") from None
    if size > LARGEST:
        raise Refused("invalid", f"the value has {size} bytes; a secret has at most {LARGEST}", field="value")
    return value


def _checked_origins(origins: Sequence[str]) -> tuple[str, ...]:
    if not 1 <= len(origins) <= MOST_ORIGINS:
        raise Refused("invalid", f"a secret is for 1 to {MOST_ORIGINS} origins, as https://host", field="origins")
    return tuple(dict.fromkeys(map(_checked_origin, origins)))


def _checked_origin(text: str) -> str:
    origin = targets.origin(text, "origins")
    _, _, rest = text.partition("://")
    if rest.partition("/")[2] or "?" in rest:
        detail = "an origin is https://host or https://host:port, without a path; a secret is sent to all of it"
        raise Refused("invalid", detail, field="origins")
    return origin


__all__ = ["Key", "OwnSecrets"]
