-- Dead letters as a workflow: the keys that edited jobs had before, and a ledger that says more of what was dropped.

-- A change of a job's request. `key` is the one that it had before; NULL: the job's id.
CREATE TABLE edits (
    job     INTEGER NOT NULL,
    n       INTEGER NOT NULL,
    wall_at INTEGER NOT NULL,
    key     TEXT,
    PRIMARY KEY (job, n)
) STRICT, WITHOUT ROWID;

ALTER TABLE dropped ADD COLUMN destination TEXT NOT NULL DEFAULT '';
ALTER TABLE dropped ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE dropped ADD COLUMN error TEXT;          -- what it was dead of: JSON, as in jobs.last_error
ALTER TABLE dropped ADD COLUMN by_uid INTEGER;      -- who gave it up; NULL: nobody did, a limit was reached
CREATE INDEX dropped_owner ON dropped (owner, id);

-- From sentences to words that programs can rely on, and the totals that outlive the single entries.
UPDATE dropped SET why = CASE why
    WHEN 'the queue was full' THEN 'queue_full'
    WHEN 'it was dead for too long' THEN 'dead_too_long'
    WHEN 'too many are dead' THEN 'too_many_dead'
    ELSE why END;
INSERT INTO tally (topic, owner, kind, jobs, bytes)
SELECT topic, owner, 'dropped.' || why, count(*), 0 FROM dropped GROUP BY topic, owner, why;
