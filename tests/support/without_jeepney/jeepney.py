"""Stands before the real jeepney where a test puts this folder on PYTHONPATH: a process on a system that has none."""

raise ImportError("jeepney is not installed")
