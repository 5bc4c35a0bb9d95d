"""The one place where bytes leave for a destination.

A request is a value, and so is whatever came of it: a reply or a fault. Nothing here decides what they mean. The HTTP
library behind it is kept from being clever (no hidden retry, redirect, cookie, proxy of the environment, re-encoding or
total timeout) and is imported with the first request, because it is half of the memory of an idle daemon.
"""

from kurir.system.http.messages import (
    Fault,
    Moved,
    Redirects,
    Route,
    Timeouts,
    WireFault,
    WireReply,
    WireRequest,
    check,
    check_route,
    moved_before,
)
from kurir.system.http.sender import HttpSender

__all__ = [
    "Fault",
    "HttpSender",
    "Moved",
    "Redirects",
    "Route",
    "Timeouts",
    "WireFault",
    "WireReply",
    "WireRequest",
    "check",
    "check_route",
    "moved_before",
]
