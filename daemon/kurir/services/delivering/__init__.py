"""Attempts: from a claimed job to its recorded outcome, with the credentials that it may use."""
