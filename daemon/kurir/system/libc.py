"""Calls of the C library that Python does not offer, and that are worth having: a few, named where they are used."""

from __future__ import annotations

import os
from errno import ENOSYS


def call(name: str, *arguments: int | bytes | bytearray | None) -> int:
    """Call a function that returns an int and reports failure by -1 and errno.

    A bytearray is handed over as memory that the function may fill. Raises OSError; a Python without ctypes (a small
    build for an embedded device) and a C library without the function are ENOSYS.
    """
    try:
        import ctypes  # noqa: PLC0415 - not every Python of an embedded device has it
    except ImportError as error:
        raise OSError(ENOSYS, f"{name}: this Python has no ctypes") from error
    try:
        function = getattr(ctypes.CDLL(None, use_errno=True), name)
    except AttributeError as error:
        raise OSError(ENOSYS, f"{name}: not in this C library") from error
    given = [(ctypes.c_char * len(a)).from_buffer(a) if isinstance(a, bytearray) else a for a in arguments]
    result: int = function(*given)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result
