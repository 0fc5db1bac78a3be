-- The first schema of the PostgreSQL engine. Later migrations only add, so that servers of two versions can share it.
--
-- Names, ids and keys have the collation "C": pages are ordered by bytes, as in SQLite. JSON is stored as bytes, because
-- jsonb changes it. A column `record` has the fields of a record as a JSON array, whose layout does not change: a new
-- field becomes a column. Other columns repeat the fields that queries need.

CREATE TABLE meta (
  name text COLLATE "C" PRIMARY KEY,
  value text NOT NULL
);

-- One row for each connection that writes, with the number of its last group of writes. If the connection is lost
-- during a commit, this row says whether the group was committed, and keeps a late one from starting.
CREATE TABLE lanes (
  id bigint PRIMARY KEY,
  last bigint NOT NULL,
  used_at bigint NOT NULL
) WITH (fillfactor = 50);
CREATE SEQUENCE lane_ids;

-- `rev` grows with every write to any row of a session, so rows that were read with a rev are valid while it holds.
-- `listed_at` follows `updated_at` at most once a second: an index on a column that changes with every write would make
-- each write several times more expensive.
CREATE TABLE sessions (
  id bigint PRIMARY KEY,
  name text COLLATE "C" NOT NULL UNIQUE,
  rev bigint NOT NULL,
  head bigint NOT NULL,
  low bigint NOT NULL DEFAULT 0,
  updated_at bigint NOT NULL,
  listed_at bigint NOT NULL,
  turn_owner text COLLATE "C" NOT NULL,
  release_at bigint NOT NULL,
  has_held_text boolean NOT NULL,
  record bytea NOT NULL
) WITH (fillfactor = 50);
CREATE SEQUENCE session_ids;
CREATE INDEX sessions_by_listing ON sessions (listed_at);
CREATE INDEX sessions_at_work ON sessions (turn_owner) WHERE turn_owner <> '';
CREATE INDEX sessions_to_release ON sessions (id) WHERE has_held_text;

-- The log. All tables below can be rebuilt from it, except owners, leases and blobs.
CREATE TABLE events (
  session bigint NOT NULL,
  seq bigint NOT NULL,
  body bytea NOT NULL,
  PRIMARY KEY (session, seq)
);

CREATE TABLE keys (
  session bigint NOT NULL,
  key text COLLATE "C" NOT NULL,
  mark text NOT NULL,
  seq bigint NOT NULL,
  PRIMARY KEY (session, key)
);

-- `change` is the transaction that wrote the row last. Readers of changes compare it with the oldest open transaction.
CREATE TABLE calls (
  id text COLLATE "C" PRIMARY KEY,
  session bigint NOT NULL,
  entry bigint NOT NULL,
  state text COLLATE "C" NOT NULL,
  client_call_id text COLLATE "C" NOT NULL,
  tool text COLLATE "C" NOT NULL,
  title text COLLATE "C" NOT NULL,
  deadline bigint NOT NULL,
  created_at bigint NOT NULL,
  ended_at bigint NOT NULL,
  end_seq bigint NOT NULL,
  owner text COLLATE "C" NOT NULL,
  lease bigint NOT NULL,
  client text COLLATE "C" NOT NULL,
  change xid8 NOT NULL,
  rev bigint NOT NULL,
  record bytea NOT NULL
) WITH (fillfactor = 80);
CREATE INDEX calls_by_session ON calls (session, entry);
CREATE INDEX calls_by_time ON calls (created_at, session, entry);
CREATE INDEX calls_open ON calls (session) WHERE state IN ('queued', 'awaiting_approval', 'running');
CREATE INDEX calls_owned ON calls (owner) WHERE owner <> '' AND state IN ('queued', 'awaiting_approval', 'running');
CREATE INDEX calls_leased ON calls (lease) WHERE lease > 0 AND state IN ('queued', 'awaiting_approval', 'running');
CREATE INDEX calls_due ON calls (deadline) WHERE deadline > 0 AND state IN ('queued', 'running');
CREATE INDEX commands_waiting ON calls (client, created_at, session, entry)
  WHERE client <> '' AND state IN ('queued', 'awaiting_approval');
CREATE INDEX commands_open ON calls (created_at, session, entry)
  WHERE client <> '' AND state IN ('queued', 'awaiting_approval', 'running');
CREATE INDEX commands_completed ON calls (ended_at, session, end_seq) WHERE client <> '' AND state = 'completed';
CREATE INDEX commands_failed ON calls (ended_at, session, end_seq)
  WHERE client <> '' AND state IN ('failed', 'denied', 'cancelled', 'expired', 'lost');
CREATE INDEX commands_by_change ON calls (change, id) WHERE client <> '';

CREATE TABLE aliases (
  session bigint NOT NULL,
  id text COLLATE "C" NOT NULL,
  ns text COLLATE "C" NOT NULL,
  call text COLLATE "C" NOT NULL,
  PRIMARY KEY (session, id, ns)
);
CREATE INDEX aliases_by_id ON aliases (id);

CREATE TABLE approvals (
  id text COLLATE "C" PRIMARY KEY,
  session bigint NOT NULL,
  call text COLLATE "C" NOT NULL,
  entry bigint NOT NULL,
  state text COLLATE "C" NOT NULL,
  expires_at bigint NOT NULL,
  created_at bigint NOT NULL,
  record bytea NOT NULL
);
CREATE INDEX approvals_by_session ON approvals (session, entry);
CREATE INDEX approvals_pending ON approvals (created_at, session, entry) WHERE state = 'pending';
CREATE INDEX approvals_due ON approvals (expires_at) WHERE state = 'pending' AND expires_at > 0;

-- How many commands of a client are pending. Submissions lock this row, so that a queue never exceeds its limit.
CREATE TABLE queues (
  client text COLLATE "C" PRIMARY KEY,
  waiting bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE owners (
  id text COLLATE "C" PRIMARY KEY,
  until bigint NOT NULL
) WITH (fillfactor = 50);

-- The unredacted arguments of an open command for its worker, if the log has them redacted.
CREATE TABLE sealed (
  call text COLLATE "C" PRIMARY KEY,
  session bigint NOT NULL,
  input bytea NOT NULL
);
CREATE INDEX sealed_by_session ON sealed (session);

-- When the workers of a client last asked for work.
CREATE TABLE executors (
  client text COLLATE "C" PRIMARY KEY,
  asked_at bigint NOT NULL
);

-- Checkpoints: finished entries, pieces of streaming texts, and the state to continue the fold from.
CREATE TABLE entries (
  session bigint NOT NULL,
  id bigint NOT NULL,
  body bytea NOT NULL,
  PRIMARY KEY (session, id)
);

CREATE TABLE pieces (
  session bigint NOT NULL,
  entry bigint NOT NULL,
  field text COLLATE "C" NOT NULL,
  at bigint NOT NULL,
  text bytea NOT NULL,
  PRIMARY KEY (session, entry, field, at)
);

CREATE TABLE checkpoints (
  session bigint PRIMARY KEY,
  seq bigint NOT NULL,
  version bigint NOT NULL,
  state bytea NOT NULL
);

-- After retention: the state after event `seq`, from which the remaining log continues.
CREATE TABLE bases (
  session bigint PRIMARY KEY,
  seq bigint NOT NULL,
  state bytea NOT NULL
);

-- Large values under the hash of their content, written in pieces before the event that refers to them.
CREATE TABLE blobs (
  hash text COLLATE "C" PRIMARY KEY,
  size bigint NOT NULL,
  media text NOT NULL,
  whole boolean NOT NULL DEFAULT false,
  created_at bigint NOT NULL
);

CREATE TABLE blob_pieces (
  hash text COLLATE "C" NOT NULL,
  number bigint NOT NULL,
  data bytea NOT NULL,
  PRIMARY KEY (hash, number)
);

-- Which events refer to a blob. A blob is deleted with the last of them.
CREATE TABLE blob_uses (
  session bigint NOT NULL,
  seq bigint NOT NULL,
  hash text COLLATE "C" NOT NULL,
  PRIMARY KEY (session, seq)
);
CREATE INDEX blob_uses_by_hash ON blob_uses (hash);

-- Only the hash of a token is stored. An empty session means all sessions; 0 means that it does not expire.
CREATE TABLE tokens (
  id text COLLATE "C" PRIMARY KEY,
  hash text COLLATE "C" NOT NULL UNIQUE,
  label text NOT NULL,
  session text COLLATE "C" NOT NULL,
  verbs text NOT NULL,
  created_at bigint NOT NULL,
  expires_at bigint NOT NULL
);

-- What the decoders of a posted conversation remember, so that any process can continue it: their state after the body
-- with the number `state_version`, and the bodies after that. A conversation has the name of its session, which need not
-- have events yet.
CREATE TABLE conversations (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  session text COLLATE "C" NOT NULL,
  format text COLLATE "C" NOT NULL,
  caller text COLLATE "C" NOT NULL,
  chunks text NOT NULL,
  version bigint NOT NULL,
  state_version bigint NOT NULL,
  state bytea NOT NULL,
  claimed_by text NOT NULL,
  claimed_until bigint NOT NULL,
  updated_at bigint NOT NULL,
  UNIQUE (session, format, caller)
);
CREATE INDEX conversations_by_update ON conversations (updated_at);

CREATE TABLE inputs (
  conversation bigint NOT NULL REFERENCES conversations ON DELETE CASCADE,
  version bigint NOT NULL,
  body bytea NOT NULL,
  PRIMARY KEY (conversation, version)
);

-- The idempotency keys of posted bodies, with the answer to each.
CREATE TABLE posts (
  session text COLLATE "C" NOT NULL,
  key text COLLATE "C" NOT NULL,
  mark text NOT NULL,
  answer bytea NOT NULL,
  created_at bigint NOT NULL,
  PRIMARY KEY (session, key)
);
CREATE INDEX posts_by_time ON posts (created_at);

-- The clock that all leases and deadlines use, in ms since the epoch.
CREATE FUNCTION callslip_clock() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint $$;

-- Write the changes of a group of transactions. The result is '' and the clock, or a reason to decide again:
--   stale: a session has changed since its rows were read, or another process writes to it; `stale` has the ids
--   clock: the time of the decision differs from the clock by more than a second
-- Nothing is written then. Rarer conflicts raise an error, which undoes what was written:
--   CS001 a session, key or post was created by another process, or a conversation or blob has changed
--   CS002 a generated id is taken, or belongs to another session
--   CS003 a queue has less room than the decision assumed
--   CS004 the connection was given up, and its group counts as not written
-- A session that is locked by another process is not waited for, so a group never waits for one of its sessions. Other
-- locks are taken in one order: new sessions by name, then rows by id, and queues last.
CREATE FUNCTION callslip_apply(
  lane bigint, number bigint, now_ms bigint, shift_ms bigint,
  s_id bigint[], s_rev bigint[], s_new text[], s_write boolean[], s_head bigint[], s_updated bigint[], s_turn_owner text[],
  s_release bigint[], s_held boolean[], s_record bytea[],
  e_session bigint[], e_seq bigint[], e_body bytea[],
  c_id text[], c_is_new boolean[], c_session bigint[], c_entry bigint[], c_state text[], c_client_call_id text[],
  c_tool text[], c_title text[], c_deadline bigint[], c_created bigint[], c_ended bigint[], c_end bigint[],
  c_owner text[], c_lease bigint[], c_client text[], c_record bytea[],
  a_id text[], a_is_new boolean[], a_session bigint[], a_call text[], a_entry bigint[], a_state text[], a_expires bigint[],
  a_created bigint[], a_record bytea[],
  l_session bigint[], l_id text[], l_ns text[], l_call text[],
  k_session bigint[], k_key text[], k_mark text[], k_seq bigint[],
  b_session bigint[], b_seq bigint[], b_hash text[],
  x_call text[], x_session bigint[], x_input bytea[], x_ended text[],
  o_id text[], o_until bigint[],
  q_client text[], q_change bigint[], q_max bigint[],
  v_session text[], v_format text[], v_caller text[], v_expected bigint[], v_ended boolean[], v_chunks text[],
  v_version bigint[], v_claimed_by text[], v_claimed_until bigint[], v_drops_inputs boolean[],
  v_state bytea[], v_state_version bigint[],
  i_session text[], i_format text[], i_caller text[], i_version bigint[], i_body bytea[],
  p_session text[], p_key text[], p_mark text[], p_answer bytea[],
  OUT reason text, OUT clock bigint, OUT stale bigint[]
) LANGUAGE plpgsql VOLATILE
  SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
  written bigint;
BEGIN
  clock := callslip_clock() + shift_ms;
  reason := '';
  IF abs(clock - now_ms) > 1000 THEN
    reason := 'clock';
    RETURN;
  END IF;
  IF cardinality(s_id) > 0 THEN
    SELECT array_agg(u.id) INTO stale
    FROM unnest(s_id, s_rev) AS u(id, rev)
    LEFT JOIN (SELECT s.id, s.rev FROM sessions s WHERE s.id = ANY (s_id) ORDER BY s.id
      FOR NO KEY UPDATE SKIP LOCKED) AS l
      ON l.id = u.id
    WHERE u.rev > 0 AND l.rev IS DISTINCT FROM u.rev;
    IF stale IS NOT NULL THEN
      reason := 'stale';
      RETURN;
    END IF;
  END IF;
  UPDATE lanes SET last = number, used_at = clock WHERE id = lane AND last < number;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'this group of writes was given up' USING ERRCODE = 'CS004';
  END IF;
  IF cardinality(s_id) > 0 THEN
    INSERT INTO sessions AS s (id, name, rev, head, updated_at, listed_at, turn_owner, release_at, has_held_text, record)
    SELECT u.id, u.name, 1, u.head, u.updated, u.updated, u.turn_owner, u.release, u.held, u.record
    FROM unnest(s_id, s_new, s_rev, s_head, s_updated, s_turn_owner, s_release, s_held, s_record)
      AS u(id, name, rev, head, updated, turn_owner, release, held, record)
    WHERE u.rev = 0 ORDER BY u.name
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS written = ROW_COUNT;
    IF written <> (SELECT count(*) FROM unnest(s_rev) AS u(rev) WHERE u.rev = 0) THEN
      RAISE EXCEPTION 'another process created this session' USING ERRCODE = 'CS001';
    END IF;
    UPDATE sessions AS s SET rev = s.rev + 1, head = u.head, updated_at = u.updated,
      listed_at = CASE WHEN u.updated >= s.listed_at + 1000 OR u.updated < s.listed_at THEN u.updated
        ELSE s.listed_at END,
      turn_owner = u.turn_owner, release_at = u.release, has_held_text = u.held, record = u.record
    FROM unnest(s_id, s_rev, s_write, s_head, s_updated, s_turn_owner, s_release, s_held, s_record)
      AS u(id, rev, is_written, head, updated, turn_owner, release, held, record)
    WHERE s.id = u.id AND u.rev > 0 AND u.is_written;
  END IF;
  IF cardinality(e_session) > 0 THEN
    INSERT INTO events (session, seq, body) SELECT * FROM unnest(e_session, e_seq, e_body);
  END IF;
  IF cardinality(c_id) > 0 THEN
    INSERT INTO calls (id, session, entry, state, client_call_id, tool, title, deadline, created_at, ended_at, end_seq,
      owner, lease, client, change, rev, record)
    SELECT u.id, u.session, u.entry, u.state, u.client_call_id, u.tool, u.title, u.deadline, u.created, u.ended, u.end_seq,
      u.owner, u.lease, u.client, pg_current_xact_id(), s.rev, u.record
    FROM unnest(c_id, c_is_new, c_session, c_entry, c_state, c_client_call_id, c_tool, c_title, c_deadline, c_created,
        c_ended, c_end, c_owner, c_lease, c_client, c_record)
      AS u(id, is_new, session, entry, state, client_call_id, tool, title, deadline, created, ended, end_seq, owner,
        lease, client, record)
    JOIN sessions s ON s.id = u.session
    WHERE u.is_new ORDER BY u.id
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS written = ROW_COUNT;
    IF written <> (SELECT count(*) FROM unnest(c_is_new) AS u(is_new) WHERE u.is_new) THEN
      RAISE EXCEPTION 'the id of a new call is taken' USING ERRCODE = 'CS002';
    END IF;
    UPDATE calls AS c SET state = u.state, tool = u.tool, title = u.title, deadline = u.deadline, ended_at = u.ended,
      end_seq = u.end_seq, owner = u.owner, lease = u.lease, change = pg_current_xact_id(), rev = s.rev,
      record = u.record
    FROM unnest(c_id, c_is_new, c_session, c_state, c_tool, c_title, c_deadline, c_ended, c_end, c_owner, c_lease,
        c_record)
      AS u(id, is_new, session, state, tool, title, deadline, ended, end_seq, owner, lease, record)
    JOIN sessions s ON s.id = u.session
    WHERE c.id = u.id AND c.session = u.session AND NOT u.is_new;
    GET DIAGNOSTICS written = ROW_COUNT;
    IF written <> (SELECT count(*) FROM unnest(c_is_new) AS u(is_new) WHERE NOT u.is_new) THEN
      RAISE EXCEPTION 'a call is not in its session any more' USING ERRCODE = 'CS002';
    END IF;
  END IF;
  IF cardinality(a_id) > 0 THEN
    INSERT INTO approvals (id, session, call, entry, state, expires_at, created_at, record)
    SELECT u.id, u.session, u.call, u.entry, u.state, u.expires, u.created, u.record
    FROM unnest(a_id, a_is_new, a_session, a_call, a_entry, a_state, a_expires, a_created, a_record)
      AS u(id, is_new, session, call, entry, state, expires, created, record)
    WHERE u.is_new ORDER BY u.id
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS written = ROW_COUNT;
    IF written <> (SELECT count(*) FROM unnest(a_is_new) AS u(is_new) WHERE u.is_new) THEN
      RAISE EXCEPTION 'the id of a new approval is taken' USING ERRCODE = 'CS002';
    END IF;
    UPDATE approvals AS a SET call = u.call, entry = u.entry, state = u.state, expires_at = u.expires,
      created_at = u.created, record = u.record
    FROM unnest(a_id, a_is_new, a_session, a_call, a_entry, a_state, a_expires, a_created, a_record)
      AS u(id, is_new, session, call, entry, state, expires, created, record)
    WHERE a.id = u.id AND a.session = u.session AND NOT u.is_new;
  END IF;
  IF cardinality(l_session) > 0 THEN
    INSERT INTO aliases (session, id, ns, call) SELECT * FROM unnest(l_session, l_id, l_ns, l_call)
    ON CONFLICT (session, id, ns) DO UPDATE SET call = excluded.call;
  END IF;
  IF cardinality(k_session) > 0 THEN
    INSERT INTO keys (session, key, mark, seq) SELECT * FROM unnest(k_session, k_key, k_mark, k_seq)
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS written = ROW_COUNT;
    IF written <> cardinality(k_session) THEN
      RAISE EXCEPTION 'a key was used before' USING ERRCODE = 'CS001';
    END IF;
  END IF;
  IF cardinality(b_session) > 0 THEN
    -- A blob that an event names must not be deleted before the event is committed.
    PERFORM 1 FROM blobs WHERE hash = ANY (b_hash) AND whole ORDER BY hash FOR KEY SHARE;
    GET DIAGNOSTICS written = ROW_COUNT;
    IF written <> (SELECT count(DISTINCT u.hash) FROM unnest(b_hash) AS u(hash)) THEN
      RAISE EXCEPTION 'a blob was deleted' USING ERRCODE = 'CS001';
    END IF;
    INSERT INTO blob_uses (session, seq, hash) SELECT * FROM unnest(b_session, b_seq, b_hash)
    ON CONFLICT (session, seq) DO UPDATE SET hash = excluded.hash;
  END IF;
  IF cardinality(x_ended) > 0 THEN
    DELETE FROM sealed WHERE call = ANY (x_ended);
  END IF;
  IF cardinality(x_call) > 0 THEN
    INSERT INTO sealed (call, session, input) SELECT * FROM unnest(x_call, x_session, x_input)
    ON CONFLICT (call) DO UPDATE SET session = excluded.session, input = excluded.input;
  END IF;
  IF cardinality(o_id) > 0 THEN
    INSERT INTO owners (id, until) SELECT u.id, u.until FROM unnest(o_id, o_until) AS u(id, until) ORDER BY u.id
    ON CONFLICT (id) DO UPDATE SET until = excluded.until;
  END IF;
  IF cardinality(v_session) > 0 THEN
    DELETE FROM conversations c USING unnest(v_session, v_format, v_caller, v_expected, v_ended)
      AS u(session, format, caller, expected, ended)
    WHERE (c.session, c.format, c.caller) = (u.session, u.format, u.caller) AND u.ended AND c.version = u.expected;
    GET DIAGNOSTICS written = ROW_COUNT;
    IF written <> (SELECT count(*) FROM unnest(v_ended, v_expected) AS u(ended, expected) WHERE ended AND expected > 0) THEN
      RAISE EXCEPTION 'a conversation has changed' USING ERRCODE = 'CS001';
    END IF;
    INSERT INTO conversations AS c (session, format, caller, chunks, version, claimed_by, claimed_until, updated_at,
      state_version, state)
    SELECT u.session, u.format, u.caller, u.chunks, u.version, u.claimed_by, u.claimed_until, now_ms, u.state_version,
      coalesce(u.state, '')
    FROM unnest(v_session, v_format, v_caller, v_expected, v_ended, v_chunks, v_version, v_claimed_by, v_claimed_until,
        v_state, v_state_version)
      AS u(session, format, caller, expected, ended, chunks, version, claimed_by, claimed_until, state, state_version)
    WHERE NOT u.ended AND u.expected = 0 ORDER BY u.session, u.format, u.caller
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS written = ROW_COUNT;
    IF written <> (SELECT count(*) FROM unnest(v_ended, v_expected) AS u(ended, expected)
        WHERE NOT ended AND expected = 0) THEN
      RAISE EXCEPTION 'a conversation was started by another process' USING ERRCODE = 'CS001';
    END IF;
    UPDATE conversations AS c SET version = u.version, claimed_by = u.claimed_by, claimed_until = u.claimed_until,
      updated_at = now_ms, chunks = u.chunks, state = coalesce(u.state, c.state),
      state_version = CASE WHEN u.state IS NULL THEN c.state_version ELSE u.state_version END
    FROM unnest(v_session, v_format, v_caller, v_expected, v_ended, v_chunks, v_version, v_claimed_by, v_claimed_until,
        v_state, v_state_version)
      AS u(session, format, caller, expected, ended, chunks, version, claimed_by, claimed_until, state, state_version)
    WHERE (c.session, c.format, c.caller) = (u.session, u.format, u.caller) AND NOT u.ended AND u.expected > 0
      AND c.version = u.expected;
    GET DIAGNOSTICS written = ROW_COUNT;
    IF written <> (SELECT count(*) FROM unnest(v_ended, v_expected) AS u(ended, expected)
        WHERE NOT ended AND expected > 0) THEN
      RAISE EXCEPTION 'a conversation has changed' USING ERRCODE = 'CS001';
    END IF;
    DELETE FROM inputs i USING conversations c, unnest(v_session, v_format, v_caller, v_drops_inputs)
      AS u(session, format, caller, drops_inputs)
    WHERE (c.session, c.format, c.caller) = (u.session, u.format, u.caller) AND u.drops_inputs AND i.conversation = c.id;
    INSERT INTO inputs (conversation, version, body)
    SELECT c.id, u.version, u.body
    FROM unnest(i_session, i_format, i_caller, i_version, i_body) AS u(session, format, caller, version, body)
    JOIN conversations c ON (c.session, c.format, c.caller) = (u.session, u.format, u.caller);
  END IF;
  IF cardinality(p_session) > 0 THEN
    INSERT INTO posts (session, key, mark, answer, created_at)
    SELECT u.session, u.key, u.mark, u.answer, now_ms
    FROM unnest(p_session, p_key, p_mark, p_answer) AS u(session, key, mark, answer)
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS written = ROW_COUNT;
    IF written <> cardinality(p_session) THEN
      RAISE EXCEPTION 'a key was used before' USING ERRCODE = 'CS001';
    END IF;
  END IF;
  IF cardinality(q_client) > 0 THEN
    INSERT INTO queues (client, waiting) SELECT u.client, 0 FROM unnest(q_client) AS u(client) ORDER BY u.client
    ON CONFLICT DO NOTHING;
    IF EXISTS (
      SELECT 1 FROM unnest(q_client, q_max) AS u(client, most)
      JOIN (SELECT q.client, q.waiting FROM queues q WHERE q.client = ANY (q_client) ORDER BY q.client FOR NO KEY UPDATE)
        AS l ON l.client = u.client
      WHERE l.waiting > u.most
    ) THEN
      RAISE EXCEPTION 'a queue has less room' USING ERRCODE = 'CS003';
    END IF;
    UPDATE queues AS q SET waiting = q.waiting + u.change FROM unnest(q_client, q_change) AS u(client, change)
    WHERE q.client = u.client AND u.change <> 0;
  END IF;
END
$$;
