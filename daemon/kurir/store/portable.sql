-- Moving jobs to another daemon and taking them in from one.

-- name: export_ceiling
-- Where a page that starts above an id ends, so that no call scans more than so many rows.
SELECT id FROM jobs NOT INDEXED WHERE id > ? ORDER BY id LIMIT 1 OFFSET ?;

-- name: export_page
-- Jobs that have not ended, dead letters and conflicts, in the order of commit: with the inline payload, the client's
-- key and what it stands for, and the needs of the lane.
SELECT {columns}, (SELECT body FROM bodies WHERE job = jobs.id),
    (SELECT key FROM keys INDEXED BY keys_job WHERE job = jobs.id),
    (SELECT digest FROM keys INDEXED BY keys_job WHERE job = jobs.id), (SELECT needs FROM lanes WHERE id = jobs.lane)
FROM jobs NOT INDEXED WHERE id > :above AND id <= :ceiling AND (state <= 4 OR state = 6 OR state = 7)
    AND (:owner IS NULL OR owner = :owner) ORDER BY id LIMIT :limit;

-- name: parents
-- Whom a job comes after.
SELECT j.uid, s.kind FROM successions s INDEXED BY successions_child JOIN jobs j ON j.id = s.parent WHERE s.child = ? LIMIT ?;

-- name: known_uid
SELECT {columns} FROM jobs WHERE uid = ?;

-- name: parent
SELECT id, owner, state FROM jobs WHERE uid = ?;

-- name: import_job
INSERT INTO jobs (id, uid, owner, topic, destination, lane, state, reason, priority, turn, ordering_key, unique_key, line,
    holds_line, blocks, wire_key, client_key, correlation_id, method, target, content_type, headers, body_kind, size, cost,
    digest, accepted_at, wall_created, wall_updated, due_at, wall_not_before, expires_at, ended_at, wall_ended, attempts,
    charged, unreachable, max_attempts, ambiguous, open_base, waits, unless, last_error)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?1, ?10, ?11, ?12, ?13, ?14, ?15, 1, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24,
    ?25, ?26, ?27, ?28, ?29, ?30, ?31, ?32, ?33, ?34, ?35, ?36, ?37, ?38, ?39, ?40, ?41);
