"""From what a program says to a row that is on the disk."""
