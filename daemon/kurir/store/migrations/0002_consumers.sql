-- What local consumers hold. That a job is leased to one, and until when, stands in its own row: `lease` is negative and
-- `due_at` is the end of the lease. Here is only what it takes to recognise the holder; a lost row loses no job.
CREATE TABLE leases (
    job        INTEGER PRIMARY KEY,
    number     INTEGER NOT NULL CHECK (number < 0),   -- jobs.lease
    token      BLOB NOT NULL UNIQUE CHECK (length(token) = 32), -- its SHA-256: a copy of the database gives nobody a lease
    holder     INTEGER NOT NULL,                      -- uid of the consumer
    since      INTEGER NOT NULL,                      -- device milliseconds
    wall_since INTEGER NOT NULL
) STRICT;
