-- When the first text that is held back in a session must be released, 0 for none. Any process may release it.
ALTER TABLE sessions ADD COLUMN release_at INTEGER NOT NULL DEFAULT 0;
CREATE INDEX sessions_to_release ON sessions (release_at) WHERE release_at > 0;

-- What the decoders of a posted conversation remember, so that any process can continue it: their state after the body
-- with the number `state_version`, and the bodies after that. Earlier bodies are kept while a decoder holds input back,
-- for a process that cannot read the state. A conversation has the name of its session, which need not have events yet.
CREATE TABLE conversations (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  session TEXT NOT NULL,
  format TEXT NOT NULL,
  caller TEXT NOT NULL,
  chunks TEXT NOT NULL,
  version INTEGER NOT NULL,
  state_version INTEGER NOT NULL,
  state BLOB NOT NULL,
  claimed_by TEXT NOT NULL,
  claimed_until INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  UNIQUE (session, format, caller)
) STRICT;

CREATE TABLE inputs (
  conversation INTEGER NOT NULL,
  version INTEGER NOT NULL,
  body BLOB NOT NULL,
  PRIMARY KEY (conversation, version)
) STRICT, WITHOUT ROWID;

-- The idempotency keys of posted bodies, with the answer to each.
CREATE TABLE posts (
  session TEXT NOT NULL,
  key TEXT NOT NULL,
  mark TEXT NOT NULL,
  answer BLOB NOT NULL,
  created_at INTEGER NOT NULL,
  PRIMARY KEY (session, key)
) STRICT, WITHOUT ROWID;

-- They are deleted with their session, also by a process of an older version.
CREATE TRIGGER conversations_deleted AFTER DELETE ON sessions BEGIN
  DELETE FROM conversations WHERE session = OLD.name;
  DELETE FROM posts WHERE session = OLD.name;
END;
CREATE TRIGGER inputs_deleted AFTER DELETE ON conversations BEGIN
  DELETE FROM inputs WHERE conversation = OLD.id;
END;
