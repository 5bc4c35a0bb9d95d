"""Stands before the real sdbus where a test puts this folder on PYTHONPATH: a process on a system that has none."""

raise ImportError("sdbus is not installed")
