"""Secrets by reference: {secret:NAME} in a configured string becomes its value at the moment of sending, not before.

Values are read afresh each time, so that a replaced file counts for the next request, and none of them is in the
database, in a log or in a core of the configuration. A watcher says when one changed: a destination that was held for
its credentials is tried again.
"""

from __future__ import annotations

import asyncio
import grp
import hashlib
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

from kurir.domain.errors import ConfigurationError
from kurir.system.folder_watch import FolderWatch
from kurir.system.redaction import Redaction
from kurir.system.regular_file import read_regular

LARGEST = 64 * 1024

_REFERENCE = re.compile(r"\{secret:([^{}]*)\}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_OTHERS = stat.S_IROTH | stat.S_IWOTH
_GROUP = stat.S_IRGRP | stat.S_IWGRP
_NONE: Mapping[str, str] = MappingProxyType({})


class SecretKind(StrEnum):
    """Where a secret is kept."""

    FILE = "file"
    CREDENTIAL = "credential"  # a file of $CREDENTIALS_DIRECTORY
    ENV = "env"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretSource:
    """The place of one secret: a path, the name of a credential, or the name of a variable."""

    kind: SecretKind
    where: str


class SecretUnusable(ConfigurationError):
    """A secret is missing, exposed to others, or no header value. Says which and why, never what it is."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"cannot use secrets.{name}: {reason}")
        self.name = name
        self.reason = reason


class Secrets:
    """The secrets of the configuration, by name.

    `environ` is the environment of the process; `group` the group of the people who may use the socket, who must not
    be able to read what the daemon sends in its own name.
    """

    def __init__(self, sources: Mapping[str, SecretSource], *, environ: Mapping[str, str], group: str) -> None:
        self._sources = dict(sources)
        self._environ = environ
        self._group = group
        self._redaction = Redaction()
        self._seen: dict[str, bytes | None] = {}

    def __repr__(self) -> str:
        return f"Secrets({sorted(self._sources)})"

    def reconfigured(self, sources: Mapping[str, SecretSource], *, group: str) -> Secrets:
        """The secrets of a new configuration, which still redact the old values and know what was seen last."""
        successor = Secrets(sources, environ=self._environ, group=group)
        successor._redaction = self._redaction
        successor._seen = dict(self._seen)
        return successor

    def validate(self) -> None:
        """Reads every secret once; what it finds is what later changes are measured by, unless a predecessor saw more.

        Raises SecretUnusable for the first that cannot be used.
        """
        for name in self._sources:
            self._seen.setdefault(name, _digest(self._value(name)))

    def fill(self, text: str, tokens: Mapping[str, str] = _NONE) -> str:
        """The text with values in place of its references, fit for a header. Raises SecretUnusable.

        `tokens` are further values by name, such as the oauth token of a destination.
        """
        return _REFERENCE.sub(lambda match: self._found(match[1], tokens), text)

    def learn(self, name: str, value: str) -> None:
        """Makes a value known that did not come from here (a token that was bought), so that it is redacted too."""
        self._redaction.learn(name, value)

    @property
    def known(self) -> bool:
        """Whether there is any value to redact."""
        return bool(self._redaction)

    def redact(self, text: str, *, cut: bool = False) -> str:
        """The text with {secret:NAME} in place of every value that is or was known, also escaped or in base64.

        `cut`: the text may end in the middle of a value.
        """
        return self._redaction.redact(text, cut=cut)

    def refresh(self) -> frozenset[str]:
        """The names whose value is another than when this was last asked, or became usable or unusable."""
        found = {name: self._digest_now(name) for name in self._sources}
        changed = frozenset(name for name, digest in found.items() if self._seen.get(name, digest) != digest)
        self._seen = found
        return changed

    async def run(self, on_change: Callable[[frozenset[str]], None]) -> None:
        """Calls `on_change` with the names that changed, each time when the kernel reports something near their files.

        Never returns. Raises OSError if the kernel gives no watches: values are then still read at each request.
        """
        paths = self._paths()
        if not paths:
            await asyncio.Event().wait()
        watch = FolderWatch()
        loop = asyncio.get_running_loop()
        noticed = asyncio.Event()
        loop.add_reader(watch.fileno(), noticed.set)
        try:
            while True:
                noticed.clear()
                watch.drain()
                watch.follow(paths)
                if changed := self.refresh():
                    on_change(changed)
                await noticed.wait()
        finally:
            loop.remove_reader(watch.fileno())
            watch.close()

    def _paths(self) -> tuple[Path, ...]:
        files = (self._path(source) for source in self._sources.values() if source.kind is not SecretKind.ENV)
        return tuple(path for path in files if path is not None)

    def _path(self, source: SecretSource) -> Path | None:
        if source.kind is SecretKind.FILE:
            return Path(source.where)
        folder = self._environ.get("CREDENTIALS_DIRECTORY", "")
        return Path(folder, source.where) if folder else None

    def _found(self, name: str, tokens: Mapping[str, str]) -> str:
        return tokens[name] if name in tokens else self._value(name)

    def _digest_now(self, name: str) -> bytes | None:
        try:
            return _digest(self._value(name))
        except SecretUnusable:
            return None

    def _value(self, name: str) -> str:
        source = self._sources.get(name)
        if source is None:
            raise SecretUnusable(name, "there is no such secret; add it to [secrets]")
        value = self._variable(name, source) if source.kind is SecretKind.ENV else self._content(name, source)
        if not value:
            raise SecretUnusable(name, "it is empty")
        if _CONTROL.search(value):
            raise SecretUnusable(name, "it holds a line break or another control character, which no header may carry")
        if not _is_text(value):  # the environment may hold any bytes
            raise SecretUnusable(name, "it is not text in UTF-8, which a header has to be")
        self._redaction.learn(name, value)
        return value

    def _variable(self, name: str, source: SecretSource) -> str:
        value = self._environ.get(source.where)
        if value is None:
            raise SecretUnusable(name, f"the environment variable {source.where} is not set")
        return value

    def _content(self, name: str, source: SecretSource) -> str:
        path = self._path(source)
        if path is None:
            raise SecretUnusable(name, "$CREDENTIALS_DIRECTORY is not set; is LoadCredential= in the unit?")
        try:
            content = read_regular(path, most=LARGEST, approve=lambda facts: self._approve(name, path, facts))
            return content.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:  # its message would quote the content
            raise SecretUnusable(name, f"{path} is not text in UTF-8") from None
        except (OSError, ValueError) as fault:
            words = fault.strerror if isinstance(fault, OSError) else str(fault)
            raise SecretUnusable(name, f"{path} cannot be read: {words}") from fault

    def _approve(self, name: str, path: Path, facts: os.stat_result) -> None:
        exposed = facts.st_mode & _GROUP and facts.st_gid == _gid(self._group)
        if exposed or facts.st_mode & _OTHERS:
            raise SecretUnusable(name, f"others may read or write {path}; run chown root:kurird and chmod 0640 on it")


def references(text: str) -> frozenset[str]:
    """The names of the secrets that a text refers to."""
    return frozenset(_REFERENCE.findall(text))


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _digest(value: str) -> bytes:
    return hashlib.sha256(value.encode("utf-8", "surrogateescape")).digest()


def _gid(group: str) -> int | None:
    try:
        return grp.getgrnam(group).gr_gid
    except (KeyError, ValueError):
        return None
