-- What people look at. Only read-only connections run these; each is bounded in rows it returns and rows it scans.

-- name: floor
-- Where a page that starts below an id has to end, so that no call scans more than so many rows.
SELECT id FROM jobs NOT INDEXED WHERE id < ? ORDER BY id DESC LIMIT 1 OFFSET ?;

-- name: floor_leased
SELECT id FROM jobs INDEXED BY jobs_leased WHERE state = 4 AND id < ? ORDER BY id DESC LIMIT 1 OFFSET ?;

-- name: floor_dead
SELECT id FROM jobs INDEXED BY jobs_dead WHERE state = 6 AND id < ? ORDER BY id DESC LIMIT 1 OFFSET ?;

-- name: floor_conflict
SELECT id FROM jobs INDEXED BY jobs_conflict WHERE state = 7 AND id < ? ORDER BY id DESC LIMIT 1 OFFSET ?;

-- name: page
-- Newest first. :states is a bit mask of places; an error is compared by the beginning of its JSON, which also holds
-- for a damaged one.
SELECT {columns} FROM jobs NOT INDEXED WHERE id < :below AND id >= :floor AND (:states >> state) & 1
    AND (:owner IS NULL OR owner = :owner) AND (:topic IS NULL OR topic = :topic)
    AND (:destination IS NULL OR destination = :destination)
    AND (:error IS NULL OR substr(last_error, 1, length(:error)) = :error) ORDER BY id DESC LIMIT :limit;

-- name: page_leased
SELECT {columns} FROM jobs INDEXED BY jobs_leased WHERE state = 4 AND id < :below AND id >= :floor
    AND (:owner IS NULL OR owner = :owner) AND (:topic IS NULL OR topic = :topic)
    AND (:destination IS NULL OR destination = :destination)
    AND (:error IS NULL OR substr(last_error, 1, length(:error)) = :error) ORDER BY id DESC LIMIT :limit;

-- name: page_dead
SELECT {columns} FROM jobs INDEXED BY jobs_dead WHERE state = 6 AND id < :below AND id >= :floor
    AND (:owner IS NULL OR owner = :owner) AND (:topic IS NULL OR topic = :topic)
    AND (:destination IS NULL OR destination = :destination)
    AND (:error IS NULL OR substr(last_error, 1, length(:error)) = :error) ORDER BY id DESC LIMIT :limit;

-- name: page_conflict
SELECT {columns} FROM jobs INDEXED BY jobs_conflict WHERE state = 7 AND id < :below AND id >= :floor
    AND (:owner IS NULL OR owner = :owner) AND (:topic IS NULL OR topic = :topic)
    AND (:destination IS NULL OR destination = :destination)
    AND (:error IS NULL OR substr(last_error, 1, length(:error)) = :error) ORDER BY id DESC LIMIT :limit;

-- name: job
SELECT {columns} FROM jobs WHERE uid = ?;

-- name: body
SELECT body FROM bodies WHERE job = ?;

-- name: result
SELECT status, headers, body, truncated FROM results WHERE job = ?;

-- name: attempts
-- The last attempts of a job, newest first.
SELECT n, wall_at, duration, verdict, status, error, key FROM attempts WHERE job = ? ORDER BY n DESC LIMIT ?;

-- name: edits
-- The last changes of a job's request, newest first.
SELECT wall_at, key FROM edits WHERE job = ? ORDER BY n DESC LIMIT ?;

-- name: before_in_line
-- Who stands at the head of a line, if that is before a job.
SELECT uid, state FROM jobs INDEXED BY jobs_line WHERE line = ? AND holds_line = 1 AND id < ? ORDER BY id LIMIT 1;

-- name: before_by_succession
-- Whom a job comes after.
SELECT j.uid, j.state, s.kind FROM successions s INDEXED BY successions_child JOIN jobs j ON j.id = s.parent
WHERE s.child = ? LIMIT ?;

-- name: key
SELECT uid, job, state FROM keys WHERE key = ? AND owner = ? AND topic = ?;

-- name: oldest_live
SELECT wall_created, accepted_at FROM jobs INDEXED BY jobs_live WHERE lane = ? AND state <= 4 ORDER BY id LIMIT 1;

-- name: degraded
SELECT reason, detail, wall_at FROM degraded ORDER BY wall_at;

-- name: store_pages
SELECT (SELECT page_count FROM pragma_page_count), (SELECT freelist_count FROM pragma_freelist_count),
    (SELECT page_size FROM pragma_page_size);

-- name: leased
-- Whose jobs are leased; counted by the caller.
SELECT topic, owner FROM jobs INDEXED BY jobs_leased WHERE state = 4 LIMIT ?;

-- name: files
-- Jobs whose payload is in a file of its own; for a copy of everything.
SELECT uid, digest FROM jobs NOT INDEXED WHERE body_kind = 2;
