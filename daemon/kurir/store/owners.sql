-- All that belongs to one user, for administrators: found lane by lane, or piece by piece where no index knows owners.

-- name: live
SELECT id FROM jobs INDEXED BY jobs_live WHERE lane = ? AND id > ? AND state <= 4 ORDER BY id LIMIT ?;

-- name: stuck
SELECT id FROM jobs INDEXED BY jobs_stuck WHERE lane = ? AND id > ? AND state IN (6, 7) ORDER BY id LIMIT ?;

-- name: ended
-- Ended jobs of one state, whoever they belong to, from one on.
SELECT id, owner, ended_at FROM jobs INDEXED BY jobs_ended WHERE state = ?1 AND state >= 5 AND (ended_at, id) > (?2, ?3)
ORDER BY ended_at, id LIMIT ?4;

-- name: keys
-- Keys, whoever they belong to, from one on: `state` says that the job is gone.
SELECT key, owner, topic, state FROM keys WHERE (key, owner, topic) > (?1, ?2, ?3) ORDER BY key, owner, topic LIMIT ?4;

-- name: holder
-- A live job that holds a unique key.
SELECT 1 FROM jobs INDEXED BY jobs_unique WHERE unique_key = ? AND owner = ? AND topic = ? AND unique_key IS NOT NULL
AND state <= 4 LIMIT 1;

-- name: move_job
UPDATE jobs SET owner = ?, lane = ?, line = ?, open_base = ?, state = ? WHERE id = ? AND owner = ?;

-- name: move_ended
UPDATE jobs SET owner = ? WHERE id = ? AND owner = ?;

-- name: move_keys
-- The new owner's own key of the same name stays.
UPDATE OR IGNORE keys SET owner = ? WHERE job = ? AND owner = ?;

-- name: drop_keys
DELETE FROM keys WHERE job = ? AND owner = ?;

-- name: move_key
UPDATE OR IGNORE keys SET owner = ? WHERE key = ? AND owner = ? AND topic = ?;

-- name: drop_key
DELETE FROM keys WHERE key = ? AND owner = ? AND topic = ?;
