-- Deleted sessions whose transcripts may still be on disk, each with the agent's own id of it: they are not imported again.
CREATE TABLE deleted_sessions (
  foreign_id text COLLATE "C" NOT NULL,
  name text COLLATE "C" NOT NULL,
  deleted_at bigint NOT NULL,
  PRIMARY KEY (foreign_id, name)
);
