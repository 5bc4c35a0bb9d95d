-- Statements about jobs, their lines and their successions.

-- name: insert_job
-- A new job; every rule has been applied by the caller.
INSERT INTO jobs (id, uid, owner, topic, destination, lane, state, reason, priority, turn, ordering_key, unique_key, line,
    holds_line, blocks, wire_key, client_key, correlation_id, method, target, content_type, headers, body_kind, size, cost,
    digest, accepted_at, wall_created, wall_updated, due_at, wall_not_before, expires_at, max_attempts, open_base, waits, unless)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_plain_job
-- The same for a job that leaves the rest as it is by itself, as most do: to bind a NULL takes Python longer than to write it.
INSERT INTO jobs (id, uid, owner, topic, destination, lane, state, reason, priority, turn, blocks, method, target, content_type,
    body_kind, size, cost, digest, accepted_at, wall_created, wall_updated, due_at, open_base)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_body
INSERT INTO bodies (job, body) VALUES (?, ?);

-- name: delete_body
DELETE FROM bodies WHERE job = ?;

-- name: last_id
-- The highest id ever given.
SELECT max(coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'jobs'), 0), coalesce((SELECT max(id) FROM jobs), 0));

-- name: job_by_id
SELECT {columns} FROM jobs WHERE id = ?;

-- name: job_by_uid
SELECT {columns} FROM jobs WHERE uid = ?;

-- name: promote_due
-- Waiting jobs whose instant has come stand in their lanes again.
UPDATE jobs SET state = 0 WHERE id IN (SELECT id FROM jobs WHERE state = 1 AND due_at <= ? ORDER BY due_at LIMIT ?) RETURNING lane;

-- name: next_due
SELECT due_at FROM jobs WHERE state = 1 ORDER BY due_at LIMIT 1;

-- name: ready_in_turn
-- The head of a lane: by priority, then in turn.
SELECT {columns}, (SELECT body FROM bodies WHERE job = jobs.id) FROM jobs INDEXED BY jobs_ready
WHERE lane = ? AND state = 0 ORDER BY priority DESC, turn LIMIT ?;

-- name: ready_since
-- Ready jobs of a lane that were accepted since a given id.
SELECT {columns}, (SELECT body FROM bodies WHERE job = jobs.id) FROM jobs INDEXED BY jobs_live
WHERE lane = ? AND id >= ? AND state = 0 AND state <= 4 ORDER BY id LIMIT ?;

-- name: top_priority
SELECT priority FROM jobs INDEXED BY jobs_ready WHERE lane = ? AND state = 0 ORDER BY priority DESC LIMIT 1;

-- name: next_priority
SELECT priority FROM jobs INDEXED BY jobs_ready WHERE lane = ? AND state = 0 AND priority < ? ORDER BY priority DESC LIMIT 1;

-- name: ready_at_priority
SELECT {columns}, (SELECT body FROM bodies WHERE job = jobs.id) FROM jobs INDEXED BY jobs_ready
WHERE lane = ? AND state = 0 AND priority = ? ORDER BY turn LIMIT ?;

-- name: ready_past
SELECT {columns}, (SELECT body FROM bodies WHERE job = jobs.id) FROM jobs INDEXED BY jobs_ready
WHERE lane = ? AND state = 0 AND priority = ? AND turn > ? ORDER BY turn LIMIT ?;

-- name: ready_newest_at_priority
SELECT {columns}, (SELECT body FROM bodies WHERE job = jobs.id) FROM jobs INDEXED BY jobs_ready
WHERE lane = ? AND state = 0 AND priority = ? ORDER BY turn DESC LIMIT ?;

-- name: suspect
-- One job that was in flight when the process ended uncleanly.
SELECT {columns}, (SELECT body FROM bodies WHERE job = jobs.id) FROM jobs WHERE id = ? AND state = 3;

-- name: suspects
SELECT id, lane, due_at FROM jobs INDEXED BY jobs_suspect WHERE state = 3 ORDER BY id;

-- name: lease
-- The attempt number is committed before the first byte: a job that crashes the process must not be picked for ever.
UPDATE jobs SET state = 4, lease = ?, attempts = attempts + 1, wall_updated = ? WHERE id IN (SELECT value FROM json_each(?));

-- name: lease_one
-- The same for one job: a list of one takes twice as long.
UPDATE jobs SET state = 4, lease = ?, attempts = attempts + 1, wall_updated = ? WHERE id = ?;

-- name: block_behind
UPDATE jobs SET state = 2, waits = waits + 1 WHERE id = ?;

-- name: settle
-- The end of an attempt. Guarded by the lease: an attempt that lost it changes nothing.
UPDATE jobs SET state = ?, reason = ?, due_at = ?, attempts = ?, charged = ?, unreachable = ?, crashes = ?, ambiguous = ?,
    outage = ?, last_error = ?, wall_updated = ?, ended_at = ?, wall_ended = ?, holds_line = ?, lease = NULL
WHERE id = ? AND state = 4 AND lease = ?;

-- name: insert_attempt
INSERT OR REPLACE INTO attempts (job, n, wall_at, duration, verdict, status, error, key) VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: forget_attempts
-- The oldest of a job that is tried again and again.
DELETE FROM attempts WHERE job = ? AND n <= ?;

-- name: insert_result
INSERT OR REPLACE INTO results (job, status, headers, body, truncated) VALUES (?, ?, ?, ?, ?);

-- name: end_job
-- A live, dead or conflicting job ends by an action.
UPDATE jobs SET state = ?, reason = ?, last_error = coalesce(?, last_error), wall_updated = ?, ended_at = ?, wall_ended = ?,
    holds_line = ?, lease = NULL, waits = 0 WHERE id = ? AND state = ?;

-- name: revive
-- A dead or conflicting job, or a waiting one that is to go now, becomes pending again.
UPDATE jobs SET state = ?, reason = ?, due_at = ?, attempts = ?, charged = ?, unreachable = ?, crashes = ?, outage = 0,
    wall_updated = ?, ended_at = NULL, wall_ended = NULL, holds_line = ?, open_base = ?, expires_at = ?,
    wall_not_before = NULL
WHERE id = ? AND state = ?;

-- name: set_state
UPDATE jobs SET state = ? WHERE id = ? AND state = ?;

-- name: line_head
-- The oldest of a line.
SELECT id, state, due_at, waits, lane FROM jobs INDEXED BY jobs_line WHERE line = ? AND holds_line = 1 ORDER BY id LIMIT 1;

-- name: line_leased
-- However long a line is, its front holds a few.
SELECT 1 FROM jobs INDEXED BY jobs_front WHERE line = ? AND holds_line = 1 AND state IN (0, 1, 4) AND state = 4 LIMIT 1;

-- name: line_taken
SELECT 1 FROM jobs INDEXED BY jobs_line WHERE line = ? AND holds_line = 1 LIMIT 1;

-- name: line_out_of_turn
-- Members of a line that could be claimed although they are not its head (after an older one came back).
SELECT id, state FROM jobs INDEXED BY jobs_front WHERE line = ? AND holds_line = 1 AND id > ? AND state IN (0, 1, 4)
AND state <= 1 LIMIT 10;

-- name: suspects_behind
UPDATE jobs SET state = 2 WHERE id IN
(SELECT id FROM jobs INDEXED BY jobs_suspect WHERE state = 3 AND line = ? AND holds_line = 1 AND id > ?);

-- name: newer_in_line
SELECT 1 FROM jobs INDEXED BY jobs_line WHERE line = ? AND holds_line = 1 AND id > ? LIMIT 1;

-- name: turn
SELECT turn FROM jobs WHERE id = ?;

-- name: waiting_in_line
-- What a collapsing job replaces.
SELECT {columns} FROM jobs INDEXED BY jobs_line WHERE line = ? AND holds_line = 1 AND state <= 3 ORDER BY id;

-- name: unique_holders
SELECT {columns} FROM jobs INDEXED BY jobs_unique WHERE unique_key = ? AND owner = ? AND topic = ? AND unique_key IS NOT NULL
AND state <= 4 ORDER BY id;

-- name: unique_first
SELECT {columns} FROM jobs INDEXED BY jobs_unique WHERE unique_key = ? AND owner = ? AND topic = ? AND unique_key IS NOT NULL
AND state <= 4 ORDER BY id LIMIT 1;

-- name: unique_last
SELECT {columns} FROM jobs INDEXED BY jobs_unique WHERE unique_key = ? AND owner = ? AND topic = ? AND unique_key IS NOT NULL
AND state <= 4 ORDER BY id DESC LIMIT 1;

-- name: close_gap
-- Jobs of one unique key go one after the other: who came after a job that leaves comes after those before it.
INSERT OR IGNORE INTO successions (parent, child, kind)
SELECT b.parent, a.child, 1 FROM successions b INDEXED BY successions_child
CROSS JOIN jobs p ON p.id = b.parent CROSS JOIN successions a ON a.parent = b.child CROSS JOIN jobs c ON c.id = a.child
WHERE b.child = ?1 AND p.unique_key = ?2 AND p.owner = ?3 AND p.topic = ?4 AND p.state <= 4
    AND c.unique_key = ?2 AND c.owner = ?3 AND c.topic = ?4 RETURNING child;

-- name: child_held
UPDATE jobs SET waits = waits + 1 WHERE id = ?;

-- name: insert_succession
INSERT OR IGNORE INTO successions (parent, child, kind) VALUES (?, ?, ?);

-- name: children
SELECT child FROM successions WHERE parent = ? AND kind >= ?;

-- name: delete_succession
DELETE FROM successions WHERE parent = ? AND child = ?;

-- name: delete_child
DELETE FROM successions WHERE child = ?;

-- name: delete_child_of_kind
DELETE FROM successions WHERE child = ? AND kind >= ?;

-- name: keep_waiting
-- A dead job may come back, and then still comes after the jobs that it named.
UPDATE jobs SET waits = (SELECT count(*) FROM successions INDEXED BY successions_child WHERE child = ?1) WHERE id = ?1;

-- name: child_released
UPDATE jobs SET waits = waits - 1 WHERE id = ? AND waits > 0 RETURNING waits, state, due_at, line, lane;

-- name: droppable
-- Jobs of a lane that no attempt holds, the oldest first.
SELECT {columns} FROM jobs INDEXED BY jobs_live WHERE lane = ? AND state <= 3 AND state <= 4 ORDER BY id;

-- name: expired
SELECT {columns} FROM jobs INDEXED BY jobs_expiry WHERE expires_at IS NOT NULL AND expires_at <= ? AND state <= 3
ORDER BY expires_at LIMIT ?;

-- name: next_expiry
SELECT expires_at FROM jobs INDEXED BY jobs_expiry WHERE expires_at IS NOT NULL AND state <= 3 ORDER BY expires_at LIMIT 1;

-- name: forgive_outage
-- Backoff that an outage caused is forgotten once the destination answers somebody again.
UPDATE jobs SET due_at = ?, state = 0, outage = 0 WHERE id IN
(SELECT id FROM jobs INDEXED BY jobs_outage WHERE state = 1 AND outage = 1 AND destination = ? LIMIT ?) RETURNING lane;

-- name: reanchor
-- Jobs that wait for a wall-clock instant, whoever else they come after: where that lies on the device line now. One
-- whose instant has come before is not held back again.
UPDATE jobs SET due_at = CASE WHEN ?1 THEN max(0, ?2 + (wall_not_before - ?3)) ELSE 9007199254740991 END
WHERE id IN (SELECT id FROM jobs INDEXED BY jobs_wall WHERE due_at > ?2 AND reason = 'scheduled'
    AND wall_not_before IS NOT NULL AND state <= 3);

-- name: leased
-- Attempts of the daemon's own; a consumer's lease (a negative number) outlives the instance that gave it.
SELECT {columns} FROM jobs INDEXED BY jobs_leased WHERE state = 4 AND lease >= 0 ORDER BY id;

-- name: recover
UPDATE jobs SET state = ?, reason = ?, crashes = ?, crashed_at = ?, ambiguous = 1, last_error = coalesce(?, last_error),
    wall_updated = ?, ended_at = ?, wall_ended = ?, holds_line = ?, lease = NULL WHERE id = ? AND state = 4;

-- name: insert_attempt_lost
-- The record of an attempt whose end nobody saw.
INSERT OR IGNORE INTO attempts (job, n, wall_at, duration, verdict, status, error, key)
SELECT id, (SELECT coalesce(max(n), 0) + 1 FROM attempts WHERE job = jobs.id), ?, 0, 'recovered', NULL, NULL, wire_key FROM jobs WHERE id = ?;

-- name: edit
UPDATE jobs SET method = ?, target = ?, content_type = ?, headers = ?, body_kind = ?, size = ?, cost = ?, digest = ?,
    wire_key = ?, line = ?, priority = ?, due_at = ?, wall_not_before = ?, expires_at = ?, ambiguous = ?, wall_updated = ?
WHERE id = ? AND state = ?;

-- name: schedule
-- A pending job waits for an instant that somebody asked for: no end of an outage and no flush cuts that short.
UPDATE jobs SET reason = 'scheduled', outage = 0 WHERE id = ? AND state <= 3;

-- name: set_lane
-- The time in which it could be tried is kept: it was measured against the lane that the job leaves.
UPDATE jobs SET lane = ?, open_base = ? WHERE id = ?;

-- name: insert_edit
-- The key that a request had before it was changed.
INSERT INTO edits (job, n, wall_at, key)
SELECT ?1, coalesce((SELECT max(n) FROM edits WHERE job = ?1), 0) + 1, ?2, ?3;

-- name: watch_unless
INSERT OR IGNORE INTO unless_jobs (parent, child) SELECT id, ? FROM jobs WHERE uid = ? AND owner = ?;

-- name: done_by_uid
SELECT 1 FROM jobs WHERE uid = ? AND owner = ? AND state = 5;

-- name: bury
-- A row that cannot be decoded: what may be broken in it is cleared, so that it can be shown.
UPDATE jobs SET state = 6, reason = NULL, headers = NULL, unless = NULL, last_error = ?, wall_updated = ?, ended_at = ?,
    wall_ended = ?, holds_line = 0, lease = NULL WHERE id = ?;

-- name: unlease
UPDATE jobs SET state = 0, lease = NULL WHERE id = ? AND state = 4;

-- name: flush_lane
-- Jobs of a lane that wait because an attempt failed.
UPDATE jobs SET due_at = ?, state = 0, outage = 0 WHERE id IN
(SELECT id FROM jobs INDEXED BY jobs_backoff WHERE lane = ? AND state = 1 AND reason = 'retry' LIMIT ?) RETURNING id;
