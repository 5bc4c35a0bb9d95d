"""A progress bar on standard error, for work that takes long: there only when a person watches."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from kurir.cli import screen
from kurir.cli.screen import wants_colour


class Progress(Protocol):
    """How far the work is."""

    def to(self, done: int, total: int | None) -> None: ...


class _Silent:
    def to(self, done: int, total: int | None) -> None:
        return


@contextmanager
def progress(title: str, *, over: int | None = None) -> Iterator[Progress]:
    """A bar while the block runs. None without a terminal, or when `over` says that there is but one thing to do."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb" or (over is not None and over < 2):
        yield _Silent()
        return
    from rich.console import Console  # noqa: PLC0415 - only where a bar is really drawn
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - as above
    from rich.progress import Progress as Bar  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    console = Console(file=sys.stderr, no_color=not wants_colour(sys.stderr), highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    # Output belongs to standard output, which may be a file: rich must not take it.
    bar = Bar(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
    task = bar.add_task(title, total=over)

    class _Drawn:
        def to(self, done: int, total: int | None) -> None:
            bar.update(task, completed=done, total=total)

    def above(line: str) -> None:
        console.print(Text.from_ansi(line), soft_wrap=True)

    try:
        with bar, screen.lines_above(above):
            yield _Drawn()
    finally:  # an interrupt may have come while the bar began, when it does not clean up itself
        bar.stop()
        console.show_cursor(True)
