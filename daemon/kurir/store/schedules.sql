-- Statements about schedules. Both lists of columns are in the order in which schedules.py reads them.

-- name: all_schedules
SELECT owner, name, configured, revision, identity, who, topic, rule, position, marked_at, wall_created, wall_updated,
    wall_last_run, last_job, runs, skipped, size FROM schedules;

-- name: schedule
SELECT owner, name, configured, revision, identity, who, topic, rule, position, marked_at, wall_created, wall_updated,
    wall_last_run, last_job, runs, skipped, size FROM schedules WHERE owner = ? AND name = ?;

-- name: configured_schedules
SELECT owner, name FROM schedules WHERE configured = 1;

-- name: said
SELECT said, digest FROM schedules WHERE owner = ? AND name = ?;

-- name: put_schedule
INSERT INTO schedules (owner, name, configured, revision, identity, who, topic, rule, position, marked_at, wall_created,
    wall_updated, size, digest, said) VALUES (:owner, :name, :configured, 1, :identity, :who, :topic, :rule, :position,
    :marked_at, :wall, :wall, :size, :digest, :said)
ON CONFLICT (owner, name) DO UPDATE SET configured = :configured, revision = revision + 1, identity = :identity,
    who = :who, topic = :topic, rule = :rule, position = :position, marked_at = :marked_at, wall_updated = :wall,
    size = :size, digest = :digest, said = :said;

-- name: mark_schedule
UPDATE schedules SET revision = revision + 1, identity = ?, position = ?, marked_at = ?, skipped = skipped + ?
WHERE owner = ? AND name = ? AND identity = ? AND revision = ?;

-- name: ran_schedule
UPDATE schedules SET revision = revision + 1, position = ?, marked_at = ?, wall_last_run = ?, last_job = ?,
    runs = runs + ? WHERE owner = ? AND name = ?;

-- name: remove_schedule
DELETE FROM schedules WHERE owner = ? AND name = ?;

-- name: count_schedules
-- How many an owner has through the API.
SELECT count(*) FROM schedules WHERE owner = ? AND configured = 0;

-- name: size_schedules
SELECT coalesce(sum(size), 0), coalesce(sum(iif(owner = ? AND configured = 0, size, 0)), 0) FROM schedules;

-- name: live_by_uid
SELECT 1 FROM jobs WHERE uid = ? AND state <= 4;
