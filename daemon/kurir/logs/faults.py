"""Faults that nobody caught, as lines under the same limits as everything else.

Python and asyncio print tracebacks of many lines, as often as a thing happens: an accept that fails for want of
descriptors fills a disk in hours. Here each is one line, and what repeats is folded.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Final

from kurir.logs.folding import Folding
from kurir.logs.logger import Level, Logger

_FRAMES: Final = 6


def install_handlers(
    loop: asyncio.AbstractEventLoop, logger: Logger, folding: Folding, redact: Callable[[str], str]
) -> Callable[[], None]:
    """Take over what asyncio, threads, the interpreter and foreign libraries have to say. Returns how to undo it."""
    faults = _Faults(loop, logger, folding, redact)
    before = (sys.excepthook, threading.excepthook, sys.unraisablehook, loop.get_exception_handler(), logger.defer)
    bridge = _Bridge(faults)
    logging.getLogger().addHandler(bridge)
    logger.defer = loop.call_soon
    loop.set_exception_handler(faults.of_loop)
    sys.excepthook = faults.of_program
    threading.excepthook = faults.of_thread
    sys.unraisablehook = faults.unraisable

    def undo() -> None:
        sys.excepthook, threading.excepthook, sys.unraisablehook, handler, logger.defer = before
        loop.set_exception_handler(handler)
        logging.getLogger().removeHandler(bridge)
        logger.flush()

    return undo


class _Faults:
    """Where they arrive."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, logger: Logger, folding: Folding, redact: Callable[[str], str]
    ) -> None:
        self._loop = loop
        self._logger = logger
        self._folding = folding
        self._redact = redact
        self._home = threading.get_ident()

    def of_loop(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        task = context.get("task") or context.get("future")
        name = task.get_name() if isinstance(task, asyncio.Task) else None
        self.tell(Level.ERROR, str(context.get("message", "")), context.get("exception"), task=name)

    def of_program(self, _: type[BaseException], fault: BaseException, trace: TracebackType | None) -> None:
        self._say(Level.ERROR, "the program ends with a fault", self._fields(fault, trace), 0)

    def of_thread(self, args: threading.ExceptHookArgs) -> None:
        name = args.thread.name if args.thread is not None else None
        self.tell(Level.ERROR, "a thread ended with a fault", args.exc_value, thread=name)

    def unraisable(self, args: Any) -> None:
        self.tell(Level.ERROR, "a fault in a place that cannot raise", args.exc_value)

    def tell(self, level: Level, event: str, fault: BaseException | None, **fields: object) -> None:
        """One line, folded with those of the same text and kind of fault. From any thread."""
        if level < self._logger.level:
            return
        event = self._redact(event)
        if fault is not None:
            fields |= self._fields(fault, fault.__traceback__)
        key = (event, type(fault).__name__)
        say = partial(self._say, level, event, fields)
        if threading.get_ident() == self._home:
            self._folding.tell(key, say)
            return
        try:
            self._loop.call_soon_threadsafe(self._folding.tell, key, say)
        except RuntimeError:  # the loop is closed
            say(0)

    def redacted(self, text: str) -> str:
        """The text without secrets."""
        return self._redact(text)

    def _say(self, level: Level, event: str, fields: dict[str, object], left_out: int) -> None:
        self._logger.write(level, event, **fields, more_like_it=left_out or None)

    def _fields(self, fault: BaseException, trace: TracebackType | None) -> dict[str, object]:
        try:
            text = self._redact(f"{type(fault).__name__}: {fault}")
        except Exception:  # noqa: BLE001 - the __str__ of a foreign exception may do anything
            text = type(fault).__name__
        # Frames are kept as text: a fault that is held would keep everything alive that its frames hold.
        frames = traceback.extract_tb(trace)[-_FRAMES:]
        where = " > ".join(f"{_tail(frame.filename)}:{frame.lineno} {frame.name}" for frame in frames)
        return {"fault": text, "where": where or None}


class _Bridge(logging.Handler):
    """What libraries log with Python's own logging, from warnings on."""

    def __init__(self, faults: _Faults) -> None:
        super().__init__(logging.WARNING)
        self._faults = faults

    def emit(self, record: logging.LogRecord) -> None:
        level = Level.ERROR if record.levelno >= logging.ERROR else Level.WARNING
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - arguments that do not fit their format
            text = str(record.msg)
        fault = record.exc_info[1] if record.exc_info else None
        self._faults.tell(level, str(record.msg), fault, logger=record.name, text=self._faults.redacted(text))


def _tail(path: str) -> str:
    """The last two parts of a path: enough to find the place."""
    return "/".join(path.split("/")[-2:])
