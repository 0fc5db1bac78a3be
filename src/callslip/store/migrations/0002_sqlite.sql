-- Whose a session is and what it is labelled with, both as its log says; and tokens for a part of what the server does.

-- Not called `owner`: older readers join sessions with calls, and name the owner of a call just so.
ALTER TABLE sessions ADD COLUMN owned_by TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN labels TEXT NOT NULL DEFAULT '';

-- What keeps the open turn alive, as the owner of a call keeps the call.
ALTER TABLE sessions ADD COLUMN turn_owner TEXT NOT NULL DEFAULT '';
CREATE INDEX sessions_at_work ON sessions (id) WHERE turn_owner <> '';

-- Labels were in the log before they had a column: the last ones said there, else those that retention left. An event
-- that is damaged says nothing, and keeps nobody from the rest.
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

-- So were the names of turns, before they were remembered so that no other turn gets one of them.
INSERT OR IGNORE INTO aliases (session, id, ns, call)
SELECT session, said ->> '$.turn', 'turn', '' FROM (
  SELECT session, iif(json_valid(CAST(body AS TEXT)), CAST(body AS TEXT), '{}') AS said FROM events
  WHERE substr(body, 1, 22) = CAST('{"type":"turn.started"' AS BLOB))
WHERE said ->> '$.verdict' IS NULL AND said ->> '$.turn' IS NOT NULL
UNION SELECT id, turn, 'turn', '' FROM sessions WHERE turn <> '';

-- A token itself is nowhere: only its hash. No session means every session; 0 means that it does not expire.
CREATE TABLE tokens (
  id TEXT PRIMARY KEY,
  hash TEXT NOT NULL UNIQUE,
  label TEXT NOT NULL DEFAULT '',
  session TEXT NOT NULL DEFAULT '',
  verbs TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
