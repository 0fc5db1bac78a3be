-- What the decoder of a posted conversation remembers, so that any process can continue it: its state, and the messages
-- that were read after it. By the name of the session, which need not have any event yet.
CREATE TABLE conversations (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  session TEXT NOT NULL,
  format TEXT NOT NULL,
  caller TEXT NOT NULL,
  chunks TEXT NOT NULL,
  version INTEGER NOT NULL,
  state BLOB NOT NULL,
  input_bytes INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  UNIQUE (session, format, caller)
) STRICT;
CREATE INDEX conversations_by_update ON conversations (updated_at);

CREATE TABLE inputs (
  conversation INTEGER NOT NULL,
  version INTEGER NOT NULL,
  body BLOB NOT NULL,
  PRIMARY KEY (conversation, version)
) STRICT, WITHOUT ROWID;

-- The idempotency keys of bodies without an event, and the last event of their session at that time.
CREATE TABLE input_keys (
  session TEXT NOT NULL,
  key TEXT NOT NULL,
  mark TEXT NOT NULL,
  seq INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  PRIMARY KEY (session, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX input_keys_by_update ON input_keys (updated_at);

-- They are deleted with their session, also by a process of an older version.
CREATE TRIGGER conversations_deleted AFTER DELETE ON sessions BEGIN
  DELETE FROM conversations WHERE session = OLD.name;
  DELETE FROM input_keys WHERE session = OLD.name;
END;
CREATE TRIGGER inputs_deleted AFTER DELETE ON conversations BEGIN
  DELETE FROM inputs WHERE conversation = OLD.id;
END;
