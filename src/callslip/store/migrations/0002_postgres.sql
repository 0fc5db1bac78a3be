-- What lists show of a session, and the tokens that it used. Both are derived from the log by a process that reads them:
-- `seq` is the last event in a summary. Before that a session has a row with what is known of it, so that lists have it.
CREATE TABLE summaries (
  session bigint PRIMARY KEY,
  seq bigint NOT NULL,
  version bigint NOT NULL,
  state text COLLATE "C" NOT NULL,
  title text COLLATE "C" NOT NULL,
  agent text COLLATE "C" NOT NULL,
  model text COLLATE "C" NOT NULL,
  project text COLLATE "C" NOT NULL,
  branch text COLLATE "C" NOT NULL,
  labels text COLLATE "C" NOT NULL,
  calls bigint NOT NULL,
  open_calls bigint NOT NULL,
  pending bigint NOT NULL,
  failed bigint NOT NULL,
  tokens bigint NOT NULL,
  has_responses bigint NOT NULL,
  started_at bigint NOT NULL,
  active_at bigint NOT NULL,
  body bytea NOT NULL
) WITH (fillfactor = 80);
CREATE INDEX summaries_by_activity ON summaries (active_at, session);
CREATE INDEX summaries_by_start ON summaries (started_at, session);
CREATE INDEX summaries_by_tokens ON summaries (tokens, session);
CREATE INDEX summaries_by_project ON summaries (project, active_at, session);
CREATE INDEX summaries_by_agent ON summaries (agent, active_at, session);
CREATE INDEX summaries_by_state ON summaries (state, active_at, session);
CREATE INDEX summaries_by_version ON summaries (version, active_at);

INSERT INTO summaries (session, seq, version, state, title, agent, model, project, branch, labels, calls, open_calls,
  pending, failed, tokens, has_responses, started_at, active_at, body)
SELECT s.id, 0, 0, 'idle', '', '', '', '', '', '', 0, 0, 0, 0, 0, 0, s.updated_at, s.updated_at, '{}' FROM sessions s;

-- The tokens of one response of a model. `seq` is the event of its last report.
CREATE TABLE usage (
  session bigint NOT NULL,
  id text COLLATE "C" NOT NULL,
  seq bigint NOT NULL,
  at bigint NOT NULL,
  turn text COLLATE "C" NOT NULL,
  parent text COLLATE "C" NOT NULL,
  model text COLLATE "C" NOT NULL,
  input_tokens bigint NOT NULL,
  output_tokens bigint NOT NULL,
  cached_tokens bigint NOT NULL,
  cache_write_tokens bigint NOT NULL,
  reasoning_tokens bigint NOT NULL,
  cost double precision,
  currency text COLLATE "C" NOT NULL,
  incomplete bigint NOT NULL,
  of_turn bigint NOT NULL,
  PRIMARY KEY (session, id)
);
CREATE INDEX usage_by_time ON usage (at);

-- They are deleted with their session, also by a server of an older version.
CREATE FUNCTION callslip_delete_summary() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM summaries WHERE session = OLD.id;
  DELETE FROM usage WHERE session = OLD.id;
  RETURN NULL;
END
$$;
CREATE TRIGGER summaries_deleted AFTER DELETE ON sessions FOR EACH ROW EXECUTE FUNCTION callslip_delete_summary();
