-- Owner and labels of a session, both from its log; and access tokens.

-- Not named `owner`: older readers join sessions with calls, which have a column of that name.
ALTER TABLE sessions ADD COLUMN owned_by TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN labels TEXT NOT NULL DEFAULT '';

-- The owner of the open turn, which keeps it alive.
ALTER TABLE sessions ADD COLUMN turn_owner TEXT NOT NULL DEFAULT '';
CREATE INDEX sessions_at_work ON sessions (id) WHERE turn_owner <> '';

-- Labels were in the log before they had a column: take the newest ones there, else those that retention kept. Damaged
-- events are skipped.
UPDATE sessions SET labels = coalesce(
  (SELECT said -> '$.labels' FROM (
     SELECT seq, iif(json_valid(CAST(body AS TEXT)), CAST(body AS TEXT), '{}') AS said FROM events
     WHERE session = sessions.id AND substr(body, 1, 22) = CAST('{"type":"session.info"' AS BLOB))
   WHERE said ->> '$.verdict' IS NULL AND said -> '$.labels' IS NOT NULL
   ORDER BY seq DESC LIMIT 1),
  (SELECT iif(json_valid(CAST(state AS TEXT)), CAST(state AS TEXT), '{}') -> '$.kept.info.labels'
   FROM bases WHERE session = sessions.id),
  ''
);

-- Turn names in the log become aliases, which keeps them unique.
INSERT OR IGNORE INTO aliases (session, id, ns, call)
SELECT session, said ->> '$.turn', 'turn', '' FROM (
  SELECT session, iif(json_valid(CAST(body AS TEXT)), CAST(body AS TEXT), '{}') AS said FROM events
  WHERE substr(body, 1, 22) = CAST('{"type":"turn.started"' AS BLOB))
WHERE said ->> '$.verdict' IS NULL AND said ->> '$.turn' IS NOT NULL
UNION SELECT id, turn, 'turn', '' FROM sessions WHERE turn <> '';

-- Only the hash of a token is stored. An empty session means all sessions; 0 means that it does not expire.
CREATE TABLE tokens (
  id TEXT PRIMARY KEY,
  hash TEXT NOT NULL UNIQUE,
  label TEXT NOT NULL DEFAULT '',
  session TEXT NOT NULL DEFAULT '',
  verbs TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
