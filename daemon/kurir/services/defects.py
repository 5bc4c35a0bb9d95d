"""Faults that stop nothing: they are told where those go that nobody caught, and the work goes on."""

from __future__ import annotations

import asyncio


def report(what: str, fault: BaseException) -> None:
    """Hand a fault to the loop's handler, which makes a line of it. `what` failed, in words."""
    asyncio.get_running_loop().call_exception_handler({"message": what, "exception": fault})
