-- What makes salvaged rows a queue again. All of it runs on the new database, before anybody else sees it.

-- name: keep_successions
-- A job whose parent is lost, or has ended meanwhile, waits for nobody.
DELETE FROM successions WHERE kind = 2 OR NOT EXISTS (SELECT 1 FROM jobs WHERE id = successions.child
    AND (state <= 4 OR (state = 6 AND kind = 0)))
    OR NOT EXISTS (SELECT 1 FROM jobs WHERE id = successions.parent AND (state <= 4 OR (state IN (6, 7) AND kind = 0)));

-- name: count_waits
UPDATE jobs SET waits = (SELECT count(*) FROM successions WHERE child = jobs.id)
WHERE state <= 6 AND (waits > 0 OR id IN (SELECT child FROM successions));

-- name: version
-- What is known of a job already.
SELECT wall_updated, attempts FROM jobs WHERE id = ?;

-- name: older_version
DELETE FROM jobs WHERE id = ?;

-- name: older_schedule
-- Of two versions of a schedule the one goes that was changed less often.
DELETE FROM schedules WHERE owner = ? AND name = ? AND revision < ?;

-- name: unless
SELECT id, owner, unless FROM jobs WHERE unless IS NOT NULL;

-- name: words_of_today
-- Entries of an older schema say in sentences why a job was dropped.
UPDATE dropped SET why = CASE why WHEN 'the queue was full' THEN 'queue_full'
    WHEN 'it was dead for too long' THEN 'dead_too_long' ELSE 'too_many_dead' END
WHERE why IN ('the queue was full', 'it was dead for too long', 'too many are dead');

-- name: dropped
-- The least that the totals can be.
SELECT topic, owner, why, count(*), sum(bytes) FROM dropped GROUP BY topic, owner, why;

-- name: digest
SELECT digest FROM jobs WHERE id = ?;

-- name: known
SELECT 1 FROM jobs WHERE id = ?;

-- name: inline_bodies
-- Live jobs whose payload stands beside the row, with what is there.
SELECT j.id, j.digest, b.body FROM jobs j LEFT JOIN bodies b ON b.job = j.id WHERE j.state <= 4 AND j.body_kind = 1
    AND j.id > ? ORDER BY j.id LIMIT ?;

-- name: body_lost
UPDATE jobs SET state = 6, reason = NULL, last_error = ?, ended_at = ?, wall_ended = ?,
    holds_line = (blocks AND line IS NOT NULL) WHERE id = ?;

-- name: step_behind
-- Only the head of a line may go.
UPDATE jobs SET state = 2 WHERE state IN (0, 1) AND line IS NOT NULL AND EXISTS
(SELECT 1 FROM jobs o INDEXED BY jobs_line WHERE o.line = jobs.line AND o.holds_line = 1 AND o.id < jobs.id);

-- name: wait_for_parents
UPDATE jobs SET state = 2 WHERE state IN (0, 1) AND waits > 0;

-- name: move_up
-- Whoever stood behind a job that is lost goes.
UPDATE jobs SET state = CASE WHEN due_at > ? THEN 1 ELSE 0 END WHERE state = 2 AND waits = 0 AND (line IS NULL OR NOT EXISTS
(SELECT 1 FROM jobs o INDEXED BY jobs_line WHERE o.line = jobs.line AND o.holds_line = 1 AND o.id < jobs.id));

-- name: mend_lanes
-- Lanes that are lost are made anew; what their jobs needed is lost with them.
INSERT OR IGNORE INTO lanes (id, topic, destination, owner, needs)
SELECT lane, topic, destination, owner, '{}' FROM jobs WHERE lane NOT IN (SELECT id FROM lanes) GROUP BY lane;

-- name: join_lanes
UPDATE jobs SET lane = (SELECT id FROM lanes l WHERE l.topic = jobs.topic AND l.destination = jobs.destination
    AND l.owner = jobs.owner ORDER BY l.id LIMIT 1) WHERE lane NOT IN (SELECT id FROM lanes);

-- name: census
SELECT topic, owner, state, count(*), sum(cost) FROM jobs GROUP BY topic, owner, state;

-- name: highest
SELECT coalesce(max(id), 0), coalesce(max(max(accepted_at, coalesce(ended_at, 0))), 0) FROM jobs;

-- name: forget_sequence
DELETE FROM sqlite_sequence WHERE name = 'jobs';

-- name: set_sequence
INSERT INTO sqlite_sequence (name, seq) VALUES ('jobs', ?);

-- name: columns
SELECT name FROM pragma_table_info(?);

-- name: shape
SELECT name, type, "notnull", pk FROM pragma_table_info(?);
