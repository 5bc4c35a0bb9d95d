-- The queue. One row per job; what is large or rarely read stands in tables of its own, so that the updates of an
-- attempt rewrite few bytes. Instants are device milliseconds unless the name says wall.

CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value ANY
) STRICT, WITHOUT ROWID;

-- What can be shut as one: ready jobs of a lane are equal before network, power, pauses, breakers and limits.
CREATE TABLE lanes (
    id          INTEGER PRIMARY KEY AUTOINCREMENT, -- never used twice: an ended job may name a lane that is gone
    topic       TEXT NOT NULL,
    destination TEXT NOT NULL,              -- configured name or ad-hoc origin; '' for a local topic
    owner       INTEGER NOT NULL,
    needs       TEXT NOT NULL,              -- canonical JSON
    open_ms     INTEGER NOT NULL DEFAULT 0, -- how long it could be tried, in total
    UNIQUE (topic, destination, owner, needs)
) STRICT;

CREATE TABLE jobs (
    id              INTEGER PRIMARY KEY AUTOINCREMENT, -- the commit sequence; never used twice
    uid             BLOB NOT NULL CHECK (length(uid) = 16),
    owner           INTEGER NOT NULL,
    topic           TEXT NOT NULL,
    destination     TEXT NOT NULL,
    lane            INTEGER NOT NULL REFERENCES lanes (id),
    state           INTEGER NOT NULL CHECK (state BETWEEN 0 AND 8), -- domain.job.Place
    reason          TEXT,
    priority        INTEGER NOT NULL CHECK (priority BETWEEN -100 AND 100),
    turn            INTEGER NOT NULL,               -- its place within priority: its id, or that of the job it replaced
    ordering_key    TEXT,
    unique_key      TEXT,
    line            INTEGER,                        -- hash of what must go one by one, in order
    holds_line      INTEGER NOT NULL DEFAULT 0 CHECK (holds_line IN (0, 1)),
    blocks          INTEGER NOT NULL DEFAULT 0 CHECK (blocks IN (0, 1)), -- on_dead = "block"
    wire_key        TEXT,
    client_key      INTEGER NOT NULL DEFAULT 0 CHECK (client_key IN (0, 1)),
    correlation_id  TEXT,
    method          TEXT NOT NULL,
    target          TEXT NOT NULL,
    content_type    TEXT,
    headers         TEXT,                           -- JSON: [[name, value], ...]
    body_kind       INTEGER NOT NULL CHECK (body_kind BETWEEN 0 AND 2),
    size            INTEGER NOT NULL CHECK (size >= 0),
    cost            INTEGER NOT NULL CHECK (cost >= size),
    digest          BLOB NOT NULL,
    accepted_at     INTEGER NOT NULL,
    wall_created    INTEGER NOT NULL,
    wall_updated    INTEGER NOT NULL,
    due_at          INTEGER NOT NULL,
    wall_not_before INTEGER,
    expires_at      INTEGER,
    ended_at        INTEGER,
    wall_ended      INTEGER,
    attempts        INTEGER NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    charged         INTEGER NOT NULL DEFAULT 0 CHECK (charged >= 0),
    unreachable     INTEGER NOT NULL DEFAULT 0 CHECK (unreachable >= 0),
    max_attempts    INTEGER CHECK (max_attempts > 0),
    crashes         INTEGER NOT NULL DEFAULT 0,
    crashed_at      INTEGER,
    ambiguous       INTEGER NOT NULL DEFAULT 0 CHECK (ambiguous IN (0, 1)),
    outage          INTEGER NOT NULL DEFAULT 0 CHECK (outage IN (0, 1)), -- backs off because the destination was down
    open_base       INTEGER NOT NULL DEFAULT 0,     -- lanes.open_ms when it was accepted
    waits           INTEGER NOT NULL DEFAULT 0 CHECK (waits >= 0),       -- unfinished jobs it comes after
    lease           INTEGER,
    unless          TEXT,
    last_error      TEXT,                           -- JSON
    CHECK ((state = 4) = (lease IS NOT NULL)),
    CHECK ((state >= 5) = (ended_at IS NOT NULL)),
    CHECK ((ended_at IS NULL) = (wall_ended IS NULL))
) STRICT;

CREATE UNIQUE INDEX jobs_uid ON jobs (uid);
CREATE INDEX jobs_ready ON jobs (lane, priority DESC, turn) WHERE state = 0;
CREATE INDEX jobs_waiting ON jobs (due_at) WHERE state = 1;
CREATE INDEX jobs_wall ON jobs (due_at) WHERE reason = 'scheduled' AND wall_not_before IS NOT NULL AND state <= 3;
CREATE INDEX jobs_outage ON jobs (destination) WHERE state = 1 AND outage = 1;
CREATE INDEX jobs_backoff ON jobs (lane) WHERE state = 1 AND reason = 'retry';
CREATE INDEX jobs_suspect ON jobs (id) WHERE state = 3;
CREATE INDEX jobs_leased ON jobs (id) WHERE state = 4;
CREATE INDEX jobs_live ON jobs (lane, id) WHERE state <= 4;
CREATE INDEX jobs_line ON jobs (line, id) WHERE holds_line = 1;
CREATE INDEX jobs_front ON jobs (line, id) WHERE holds_line = 1 AND state IN (0, 1, 4); -- who may go, or has gone
CREATE INDEX jobs_unique ON jobs (unique_key, owner, topic) WHERE unique_key IS NOT NULL AND state <= 4;
CREATE INDEX jobs_expiry ON jobs (expires_at) WHERE expires_at IS NOT NULL AND state <= 3;
CREATE INDEX jobs_ended ON jobs (state, ended_at) WHERE state >= 5;
CREATE INDEX jobs_dead ON jobs (id) WHERE state = 6;
CREATE INDEX jobs_conflict ON jobs (id) WHERE state = 7;
CREATE INDEX jobs_stuck ON jobs (lane) WHERE state IN (6, 7);     -- ended, but may come back to their lane

CREATE TABLE bodies (
    job  INTEGER PRIMARY KEY,
    body BLOB NOT NULL
) STRICT;

CREATE TABLE results (
    job       INTEGER PRIMARY KEY,
    status    INTEGER NOT NULL,
    headers   TEXT NOT NULL,
    body      BLOB NOT NULL,
    truncated INTEGER NOT NULL
) STRICT;

CREATE TABLE attempts (
    job      INTEGER NOT NULL,
    n        INTEGER NOT NULL,
    wall_at  INTEGER NOT NULL,
    duration INTEGER NOT NULL,              -- milliseconds
    verdict  TEXT NOT NULL,
    status   INTEGER,
    error    TEXT,                          -- JSON
    key      TEXT,                          -- NULL: the job's id
    PRIMARY KEY (job, n)
) STRICT, WITHOUT ROWID;

-- Keys that clients chose; they outlive the job, so that a late repeat is still recognised.
CREATE TABLE keys (
    key         TEXT NOT NULL,
    owner       INTEGER NOT NULL,
    topic       TEXT NOT NULL,
    destination TEXT NOT NULL,
    job         INTEGER NOT NULL,
    uid         BLOB NOT NULL,
    digest      BLOB NOT NULL,              -- of the content that the key stands for
    state       INTEGER,                    -- of the job when it was pruned
    forget_at   INTEGER,                    -- device time; decided when the job was pruned
    PRIMARY KEY (key, owner, topic)
) STRICT, WITHOUT ROWID;
CREATE INDEX keys_forget ON keys (forget_at) WHERE forget_at IS NOT NULL AND state IS NOT NULL;
CREATE INDEX keys_job ON keys (job);

-- A job that comes after another one.
CREATE TABLE successions (
    parent INTEGER NOT NULL,
    child  INTEGER NOT NULL,
    kind   INTEGER NOT NULL,                -- 0: until the parent is done or cancelled; 1: until it has ended in any way
    PRIMARY KEY (parent, child)
) STRICT, WITHOUT ROWID;
CREATE INDEX successions_child ON successions (child);

-- Totals that are changed in the transaction that they count: no scan at start, and the books always balance.
CREATE TABLE tally (
    topic TEXT NOT NULL,
    owner INTEGER NOT NULL,
    kind  TEXT NOT NULL,
    jobs  INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (topic, owner, kind)
) STRICT, WITHOUT ROWID;

-- Every job that was removed without having been delivered: what, when, whose, why.
CREATE TABLE dropped (
    id      INTEGER PRIMARY KEY,
    wall_at INTEGER NOT NULL,
    uid     BLOB NOT NULL,
    owner   INTEGER NOT NULL,
    topic   TEXT NOT NULL,
    key     TEXT NOT NULL,
    why     TEXT NOT NULL
) STRICT;

CREATE TABLE pauses (
    kind TEXT NOT NULL CHECK (kind IN ('topic', 'destination')),
    name TEXT NOT NULL,
    PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;

-- Holds that a server asked for, so that a restart does not break the promise.
CREATE TABLE holds (
    destination TEXT NOT NULL,
    hold        TEXT NOT NULL,
    detail      TEXT NOT NULL,
    since       INTEGER NOT NULL,
    until       INTEGER NOT NULL,
    strikes     INTEGER NOT NULL,
    PRIMARY KEY (destination, hold)
) STRICT, WITHOUT ROWID;

-- Faults that stay reported until a person has seen them.
CREATE TABLE degraded (
    reason  TEXT PRIMARY KEY,
    detail  TEXT NOT NULL,
    wall_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
