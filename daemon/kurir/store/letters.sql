-- Dead letters by the pile. Each statement reads a bounded piece of the index of dead jobs.

-- name: floor
-- Where a piece that starts below an id ends, counted from the newest.
SELECT id FROM jobs INDEXED BY jobs_dead WHERE state = 6 AND id < ? ORDER BY id DESC LIMIT 1 OFFSET ?;

-- name: piece
-- A piece of the dead letters, newest first; grouped by the caller. An error is compared by the beginning of its JSON,
-- which also holds for a damaged one.
SELECT topic, destination, last_error, cost, wall_ended, id FROM jobs INDEXED BY jobs_dead
WHERE state = 6 AND id < :below AND id >= :floor
    AND (:owner IS NULL OR owner = :owner) AND (:topic IS NULL OR topic = :topic)
    AND (:destination IS NULL OR destination = :destination)
    AND (:error IS NULL OR substr(last_error, 1, length(:error)) = :error)
    AND (:status IS NULL OR (json_valid(last_error) AND json_extract(last_error, '$[3]') = :status))
    AND (:before IS NULL OR wall_ended < :before) ORDER BY id DESC;

-- name: ceiling
-- Where a piece that starts above an id ends, counted from the oldest.
SELECT id FROM jobs INDEXED BY jobs_dead WHERE state = 6 AND id > ? ORDER BY id LIMIT 1 OFFSET ?;

-- name: ids
-- Some dead letters for one action on all of them, oldest first.
SELECT id FROM jobs INDEXED BY jobs_dead WHERE state = 6 AND id > :above AND id <= :ceiling
    AND (:owner IS NULL OR owner = :owner) AND (:topic IS NULL OR topic = :topic)
    AND (:destination IS NULL OR destination = :destination)
    AND (:error IS NULL OR substr(last_error, 1, length(:error)) = :error)
    AND (:status IS NULL OR (json_valid(last_error) AND json_extract(last_error, '$[3]') = :status))
    AND (:before IS NULL OR wall_ended < :before) ORDER BY id LIMIT :limit;

-- name: one
-- The same for one that is named.
SELECT id FROM jobs WHERE uid = :uid AND state = 6
    AND (:owner IS NULL OR owner = :owner) AND (:topic IS NULL OR topic = :topic)
    AND (:destination IS NULL OR destination = :destination)
    AND (:error IS NULL OR substr(last_error, 1, length(:error)) = :error)
    AND (:status IS NULL OR (json_valid(last_error) AND json_extract(last_error, '$[3]') = :status))
    AND (:before IS NULL OR wall_ended < :before);

-- name: example
SELECT uid, last_error FROM jobs WHERE id = ?;
