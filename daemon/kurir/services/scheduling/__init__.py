"""Schedules, whose slots become jobs."""
