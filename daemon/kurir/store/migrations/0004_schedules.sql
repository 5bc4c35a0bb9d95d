-- Jobs that are submitted again and again: what they say, and where each stands.

CREATE TABLE schedules (
    owner         INTEGER NOT NULL,
    name          TEXT NOT NULL,
    configured    INTEGER NOT NULL CHECK (configured IN (0, 1)), -- by the operator's file; else through the API
    revision      INTEGER NOT NULL,         -- grows with each change of the row
    identity      BLOB NOT NULL CHECK (length(identity) = 16), -- new with each start of its clock: makes the jobs' keys
    who           TEXT NOT NULL,            -- JSON: name and groups of the user who set it
    topic         TEXT NOT NULL,
    rule          TEXT NOT NULL,            -- JSON: when it runs
    position      INTEGER,                  -- slots up to there are dealt with: wall time for cron, else device time
    marked_at     INTEGER NOT NULL,         -- device time
    wall_created  INTEGER NOT NULL,
    wall_updated  INTEGER NOT NULL,
    wall_last_run INTEGER,
    last_job      BLOB,
    runs          INTEGER NOT NULL DEFAULT 0 CHECK (runs >= 0),
    skipped       INTEGER NOT NULL DEFAULT 0 CHECK (skipped >= 0), -- because the last job was not finished
    size          INTEGER NOT NULL CHECK (size >= 0),
    digest        BLOB NOT NULL,            -- of what was said
    said          BLOB NOT NULL,            -- JSON: the schedule as it was said, its payload byte for byte
    PRIMARY KEY (owner, name),
    CHECK ((wall_last_run IS NULL) = (last_job IS NULL))
) STRICT;
