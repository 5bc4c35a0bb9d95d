"""The process as a whole: everything is built from the settings here, started and taken down in order."""

from kurir.app.program import METRICS_PORT, RELOAD, Program

__all__ = ["METRICS_PORT", "RELOAD", "Program"]
