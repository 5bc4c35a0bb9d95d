"""What people do with jobs and owners after they were accepted."""
