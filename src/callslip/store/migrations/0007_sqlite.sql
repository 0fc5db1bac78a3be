-- Deleted sessions whose transcripts may still be on disk, each with the agent's own id of it: they are not imported again.
CREATE TABLE deleted_sessions (
  foreign_id TEXT NOT NULL,
  name TEXT NOT NULL,
  deleted_at INTEGER NOT NULL,
  PRIMARY KEY (foreign_id, name)
) STRICT, WITHOUT ROWID;
