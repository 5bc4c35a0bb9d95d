"""The log: one line per thing that happened, for journald or a terminal, bounded in length and in rate."""

from __future__ import annotations

from kurir.logs.faults import install_handlers
from kurir.logs.folding import Folding
from kurir.logs.logger import Level, Logger, configure
from kurir.logs.subscriber import LogSubscriber

__all__ = ["Folding", "Level", "LogSubscriber", "Logger", "configure", "install_handlers"]
