"""What makes a file last: its content, or the names in a folder, are on the disk when this returns."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Sync a file or a folder. Blocks on the disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
