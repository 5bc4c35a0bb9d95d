"""A progress bar on standard error, for work that takes long: there only when a person watches."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from kurir.cli.screen import wants_colour


class Progress(Protocol):
    """How far the work is."""

    def to(self, done: int, total: int | None) -> None: ...


class _Silent:
    def to(self, done: int, total: int | None) -> None:
        return


@contextmanager
def progress(title: str) -> Iterator[Progress]:
    """A bar while the block runs; silent without a terminal."""
    if not sys.stderr.isatty():
        yield _Silent()
        return
    from rich.console import Console  # noqa: PLC0415 - only where a bar is really drawn
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn  # noqa: PLC0415 - as above
    from rich.progress import Progress as Bar  # noqa: PLC0415 - as above

    console = Console(file=sys.stderr, no_color=not wants_colour(sys.stderr), highlight=False)
    with Bar(
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), console=console
    ) as bar:
        task = bar.add_task(title, total=None)

        class _Drawn:
            def to(self, done: int, total: int | None) -> None:
                bar.update(task, completed=done, total=total)

        yield _Drawn()
