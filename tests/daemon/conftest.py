"""What the tests of the whole process share."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from support.daemon import Daemon, MakeDaemon
from support.server import ThreadedServer


@pytest.fixture
def srv() -> Iterator[ThreadedServer]:
    """A scripted server that keeps what it saw."""
    with ThreadedServer() as server:
        yield server


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeDaemon]:
    """Makes daemons that are configured and not started; each has a folder of its own. They are ended with the test."""
    with ExitStack() as stack:

        def build(**options: Any) -> Daemon:
            folder = tmp_path / f"d{len(list(tmp_path.iterdir()))}"
            folder.mkdir(mode=0o700)
            daemon = Daemon(folder, **options)
            stack.callback(daemon.end)
            return daemon

        yield build


@pytest.fixture(autouse=True)
def _no_cores() -> Iterator[None]:
    """A daemon that is made to abort leaves no image of its memory behind."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
