"""The queue on disk: all SQL of the program, as named statements, run by synchronous functions on a connection."""
