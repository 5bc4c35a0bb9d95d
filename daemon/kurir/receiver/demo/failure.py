"""Why the demo cannot go on."""

from __future__ import annotations


class DemoFailed(Exception):
    """The demo cannot go on; the message says why, and the cure where there is one."""
