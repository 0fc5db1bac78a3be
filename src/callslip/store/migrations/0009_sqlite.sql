-- Saved rules, which answer requests for approval. The rules of a session are deleted with it, also by a process of an
-- older version. `expires_at` is 0 for a rule without an end, and `uses_left` is -1 for one without a limit.
CREATE TABLE rules (
  id TEXT PRIMARY KEY,
  action TEXT NOT NULL,
  filters BLOB NOT NULL,
  reason TEXT NOT NULL,
  scope TEXT NOT NULL,
  scope_value TEXT NOT NULL,
  expires_at INTEGER NOT NULL,
  uses_left INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  created_by TEXT NOT NULL,
  used_at INTEGER NOT NULL,
  uses INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX rules_by_scope ON rules (scope, scope_value);

CREATE TRIGGER rules_session_deleted AFTER DELETE ON sessions BEGIN
  DELETE FROM rules WHERE scope = 'session' AND scope_value = OLD.name;
END;
