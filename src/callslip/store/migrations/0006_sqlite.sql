-- What lists show of a session, and the tokens that it used. Both are derived from the log by a process that reads them:
-- `seq` is the last event in a summary. Before that a session has a row with what is known of it, so that lists have it.
CREATE TABLE summaries (
  session INTEGER PRIMARY KEY,
  seq INTEGER NOT NULL,
  version INTEGER NOT NULL,
  state TEXT NOT NULL,
  title TEXT NOT NULL,
  agent TEXT NOT NULL,
  model TEXT NOT NULL,
  project TEXT NOT NULL,
  branch TEXT NOT NULL,
  labels TEXT NOT NULL,
  calls INTEGER NOT NULL,
  open_calls INTEGER NOT NULL,
  pending INTEGER NOT NULL,
  failed INTEGER NOT NULL,
  tokens INTEGER NOT NULL,
  has_responses INTEGER NOT NULL,
  started_at INTEGER NOT NULL,
  active_at INTEGER NOT NULL,
  body BLOB NOT NULL
) STRICT;
CREATE INDEX summaries_by_activity ON summaries (active_at, session);
CREATE INDEX summaries_by_start ON summaries (started_at, session);
CREATE INDEX summaries_by_tokens ON summaries (tokens, session);
CREATE INDEX summaries_by_project ON summaries (project, active_at, session);
CREATE INDEX summaries_by_agent ON summaries (agent, active_at, session);
CREATE INDEX summaries_by_state ON summaries (state, active_at, session);
CREATE INDEX summaries_by_version ON summaries (version, active_at);

INSERT INTO summaries (session, seq, version, state, title, agent, model, project, branch, labels, calls, open_calls,
  pending, failed, tokens, has_responses, started_at, active_at, body)
SELECT id, 0, 0, iif(turn = '', 'idle', 'running'), title, '', '', '', '', '', calls, 0, 0, 0, 0, 0,
  created_at, updated_at, x'7b7d'
FROM sessions;

-- The tokens of one response of a model. `seq` is the event of its last report.
CREATE TABLE usage (
  session INTEGER NOT NULL,
  id TEXT NOT NULL,
  seq INTEGER NOT NULL,
  at INTEGER NOT NULL,
  turn TEXT NOT NULL,
  parent TEXT NOT NULL,
  model TEXT NOT NULL,
  input_tokens INTEGER NOT NULL,
  output_tokens INTEGER NOT NULL,
  cached_tokens INTEGER NOT NULL,
  cache_write_tokens INTEGER NOT NULL,
  reasoning_tokens INTEGER NOT NULL,
  cost REAL,
  currency TEXT NOT NULL,
  incomplete INTEGER NOT NULL,
  of_turn INTEGER NOT NULL,
  PRIMARY KEY (session, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX usage_by_time ON usage (at);

-- They are deleted with their session, also by a process of an older version.
CREATE TRIGGER summaries_deleted AFTER DELETE ON sessions BEGIN
  DELETE FROM summaries WHERE session = OLD.id;
  DELETE FROM usage WHERE session = OLD.id;
END;
