-- Statements about leases of local consumers.

-- name: lend
-- A job that has just been claimed is due again when its lease ends.
UPDATE jobs SET due_at = ? WHERE id = ? AND state = 4 AND lease = ?;

-- name: insert_lease
INSERT OR REPLACE INTO leases (job, number, token, holder, since, wall_since) VALUES (?, ?, ?, ?, ?, ?);

-- name: held
-- The job behind a token, if its holder asks and the lease is not over.
SELECT since, wall_since, {columns} FROM leases CROSS JOIN jobs ON jobs.id = leases.job
WHERE token = ? AND holder = ? AND state = 4 AND lease = number AND due_at > ?;

-- name: leased
-- A job under a lease of a consumer, whether or not anything else is known of the lease.
SELECT (SELECT since FROM leases WHERE job = jobs.id AND number = jobs.lease),
    (SELECT wall_since FROM leases WHERE job = jobs.id AND number = jobs.lease), {columns}
FROM jobs WHERE id = ? AND state = 4 AND lease = ?;

-- name: lent
-- Every lease of a consumer, at a start.
SELECT id, lease, due_at, lane FROM jobs INDEXED BY jobs_leased WHERE state = 4 AND lease < 0;

-- name: drop_lease
DELETE FROM leases WHERE job = ?;
