-- Retention: what is removed when its time is over, in small steps on the writer's thread.

-- name: prunable
-- Ended jobs of one state, the first to go first.
SELECT id, uid, owner, topic, lane, line, cost, size, body_kind, digest, wire_key, ended_at,
    destination, last_error FROM jobs INDEXED BY jobs_ended
WHERE state = ? AND state >= 5 ORDER BY ended_at LIMIT ?;

-- name: prunable_one
SELECT id, uid, owner, topic, lane, line, cost, size, body_kind, digest, wire_key, ended_at, destination, last_error
FROM jobs WHERE id = ? AND state = ?;

-- name: drop_keys
DELETE FROM keys WHERE job = ?;

-- name: first_ended
SELECT ended_at FROM jobs INDEXED BY jobs_ended WHERE state = ? AND state >= 5 ORDER BY ended_at LIMIT 1;

-- name: delete_jobs
-- The jobs of a JSON array of ids; a statement for each would cost half of a delivery.
DELETE FROM jobs WHERE id IN (SELECT value FROM json_each(?));

-- name: delete_bodies
DELETE FROM bodies WHERE job IN (SELECT value FROM json_each(?));

-- name: delete_results
DELETE FROM results WHERE job IN (SELECT value FROM json_each(?));

-- name: delete_attempts
DELETE FROM attempts WHERE job IN (SELECT value FROM json_each(?));

-- name: delete_edits
DELETE FROM edits WHERE job IN (SELECT value FROM json_each(?));

-- name: settle_unless
-- Who is not wanted because one of these jobs was done.
UPDATE jobs SET unless = ? WHERE id IN (SELECT child FROM unless_jobs
WHERE parent IN (SELECT value FROM json_each(?))) AND state <= 4;

-- name: forget_unless
DELETE FROM unless_jobs WHERE parent IN (SELECT value FROM json_each(?));

-- name: key_pruned
-- The key outlives its job, and answers for it until it is forgotten.
UPDATE keys SET state = ?, forget_at = coalesce(forget_at, ?) WHERE job = ?;

-- name: forget_keys
DELETE FROM keys WHERE (key, owner, topic) IN (SELECT key, owner, topic FROM keys INDEXED BY keys_forget
WHERE forget_at IS NOT NULL AND state IS NOT NULL AND forget_at <= ? ORDER BY forget_at LIMIT ?);

-- name: next_forget
SELECT forget_at FROM keys INDEXED BY keys_forget WHERE forget_at IS NOT NULL AND state IS NOT NULL
ORDER BY forget_at LIMIT 1;

-- name: count_keys
-- Keys that outlived their jobs. It reads one small index; the caller asks seldom.
SELECT count(*) FROM keys INDEXED BY keys_forget WHERE forget_at IS NOT NULL AND state IS NOT NULL;

-- name: free_pages
SELECT freelist_count FROM pragma_freelist_count;

-- name: all_pages
SELECT page_count FROM pragma_page_count;
