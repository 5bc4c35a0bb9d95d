"""`kurirctl relay`: an application's own outbox table is moved into the daemon, row by row, and no row twice."""
