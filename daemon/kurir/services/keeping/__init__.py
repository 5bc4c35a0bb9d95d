"""The store and its disk: opened, written, kept tidy."""
