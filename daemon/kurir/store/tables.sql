-- Statements about everything beside the jobs: lanes, keys, totals, pauses, holds, settings of the store.

-- name: meta_get
SELECT value FROM meta WHERE key = ?;

-- name: meta_set
INSERT INTO meta (key, value) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = ?2;

-- name: touch
INSERT INTO meta (key, value) VALUES ('probe', 1) ON CONFLICT (key) DO UPDATE SET value = value + 1;

-- name: lanes
SELECT id, topic, destination, owner, needs, open_ms FROM lanes;

-- name: lane_by_key
SELECT id FROM lanes WHERE topic = ? AND destination = ? AND owner = ? AND needs = ?;

-- name: lane_live
SELECT 1 FROM jobs INDEXED BY jobs_live WHERE lane = ? AND state <= 4 LIMIT 1;

-- name: lane_stuck
-- Dead and conflicting jobs may come back to their lane.
SELECT 1 FROM jobs INDEXED BY jobs_stuck WHERE lane = ? AND state IN (6, 7) LIMIT 1;

-- name: delete_lane
DELETE FROM lanes WHERE id = ?;

-- name: insert_lane
INSERT INTO lanes (topic, destination, owner, needs) VALUES (?, ?, ?, ?) RETURNING id;

-- name: save_open_time
UPDATE lanes SET open_ms = ? WHERE id = ?;

-- name: tally
SELECT topic, owner, kind, jobs, bytes FROM tally;

-- name: add_tally
INSERT INTO tally (topic, owner, kind, jobs, bytes) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (topic, owner, kind) DO UPDATE SET jobs = jobs + ?4, bytes = bytes + ?5;

-- name: keys_like
-- Everybody's use of one key.
SELECT owner, topic, destination, job, uid, digest, state, forget_at FROM keys WHERE key = ?;

-- name: insert_key
INSERT INTO keys (key, owner, topic, destination, job, uid, digest) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: key_ended
-- The time of remembering starts when the job has ended.
UPDATE keys SET forget_at = ? WHERE job = ?;

-- name: pauses
SELECT kind, name FROM pauses;

-- name: pause
INSERT OR IGNORE INTO pauses (kind, name) VALUES (?, ?);

-- name: resume
DELETE FROM pauses WHERE kind = ? AND name = ?;

-- name: holds
SELECT destination, hold, detail, since, until, strikes FROM holds;

-- name: put_hold
INSERT OR REPLACE INTO holds (destination, hold, detail, since, until, strikes) VALUES (?, ?, ?, ?, ?, ?);

-- name: delete_holds
DELETE FROM holds WHERE destination = ?;

-- name: degraded
SELECT reason, detail, wall_at FROM degraded ORDER BY wall_at;

-- name: put_degraded
INSERT OR REPLACE INTO degraded (reason, detail, wall_at) VALUES (?, ?, ?);

-- name: delete_degraded
DELETE FROM degraded WHERE reason = ?;

-- name: body_digest
-- Which payload file belongs to a job, if one does.
SELECT digest FROM jobs WHERE uid = ? AND body_kind = 2;

-- name: latest_instant
-- The latest instant of device time that is known to have passed.
SELECT max(coalesce((SELECT max(accepted_at) FROM (SELECT accepted_at FROM jobs ORDER BY id DESC LIMIT 100)), 0),
    coalesce((SELECT max(ended_at) FROM jobs INDEXED BY jobs_ended WHERE state = 5 AND state >= 5), 0),
    coalesce((SELECT max(ended_at) FROM jobs INDEXED BY jobs_ended WHERE state = 6 AND state >= 5), 0));
