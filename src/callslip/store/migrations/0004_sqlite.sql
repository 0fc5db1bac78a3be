-- When the first text that is held back in a session must be released, 0 for none. Any process may release it.
ALTER TABLE sessions ADD COLUMN release_at INTEGER NOT NULL DEFAULT 0;
CREATE INDEX sessions_to_release ON sessions (release_at) WHERE release_at > 0;
