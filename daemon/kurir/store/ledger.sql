-- The ledger of dropped jobs.

-- name: insert
INSERT INTO dropped (wall_at, uid, owner, topic, destination, key, bytes, why, error, by_uid)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: trim
-- Only the newest entries are kept; the totals stay.
DELETE FROM dropped WHERE id IN (SELECT id FROM dropped WHERE id <= (SELECT max(id) FROM dropped) - ? ORDER BY id LIMIT ?);

-- name: floor
-- Where a page that starts below an id has to end, so that no call reads more than so many rows.
SELECT id FROM dropped NOT INDEXED WHERE id < ? ORDER BY id DESC LIMIT 1 OFFSET ?;

-- name: page
SELECT id, wall_at, uid, owner, topic, destination, key, bytes, why, error, by_uid FROM dropped NOT INDEXED
WHERE id < :below AND id >= :floor AND (:topic IS NULL OR topic = :topic) AND (:why IS NULL OR why = :why)
ORDER BY id DESC LIMIT :limit;

-- name: floor_owner
SELECT id FROM dropped INDEXED BY dropped_owner WHERE owner = ? AND id < ? ORDER BY id DESC LIMIT 1 OFFSET ?;

-- name: page_owner
SELECT id, wall_at, uid, owner, topic, destination, key, bytes, why, error, by_uid FROM dropped INDEXED BY dropped_owner
WHERE owner = :owner AND id < :below AND id >= :floor AND (:topic IS NULL OR topic = :topic) AND (:why IS NULL OR why = :why)
ORDER BY id DESC LIMIT :limit;
