-- Which job's success makes which other one unwanted, so that retention of the one does not hide it from the other.
CREATE TABLE unless_jobs (
    parent INTEGER NOT NULL,
    child  INTEGER NOT NULL,
    PRIMARY KEY (parent, child)
) STRICT, WITHOUT ROWID;
