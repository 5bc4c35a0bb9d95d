"""Faults that this program names itself.

Everything else that is raised is a defect, or comes from outside and is mapped to one of these at the edge.
"""

from __future__ import annotations


class KuriError(Exception):
    """The base of every error that kurird raises on purpose."""


class ConfigurationError(KuriError):
    """The configuration cannot be used; the message names file, key and reason."""


class StateDirectoryError(KuriError):
    """The state directory cannot be used: missing, foreign, unsafe, or on a network file system."""


class AlreadyRunning(KuriError):
    """Another instance holds the lock of the state directory."""


class StoreFailing(KuriError):
    """The store could not be written (an input/output error, a read-only file system)."""


class DiskFull(StoreFailing):
    """The store could not be written because the disk is full."""


class StoreCorrupt(KuriError):
    """The database file is damaged; it has to be set aside and salvaged."""


class Refused(KuriError):
    """A request that is not carried out, and nothing of it is kept.

    `code` is stable and part of the public contract; `field` names the member that is wrong, where one is.
    """

    def __init__(self, code: str, detail: str, *, field: str | None = None, **extra: object) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.field = field
        self.extra = extra
