-- part: calls
SELECT c.id, s.name, entry, state, shown, tool, c.title, kind, source, c.turn, iteration, "index", scope, idempotent,
  attempt, worker, approval, opening, ending, input_mark, deadline, c.created_at, started_at, ended_at, "end", reason, owner,
  lease, client, timeout, change
FROM calls c JOIN sessions s ON s.id = c.session

-- part: approvals
-- The last column is the event of a pending request, if it may name the place of the answer.
SELECT a.id, s.name, call, entry, state, input_mark, attempt, description, options, expires_at, a.created_at, answered_at,
  option, by, reason,
  (SELECT body FROM events e WHERE a.state = 'pending' AND e.session = a.session AND e.seq = a.entry
    AND instr(body, CAST('"answerAt"' AS BLOB)) > 0)
FROM approvals a JOIN sessions s ON s.id = a.session

-- name: session
SELECT name, id, head, low, turn, turns, title, calls, message, carry, created_at, updated_at, owned_by, labels, turn_owner
FROM sessions WHERE name = ?;

-- name: heads
SELECT name, id, head FROM sessions WHERE name IN (SELECT value FROM json_each(?));

-- name: sessions
SELECT name, id, head, low, turn, turns, title, calls, message, carry, created_at, updated_at, owned_by, labels,
  turn_owner FROM sessions
WHERE (updated_at, id) < (?, ?) AND name >= ? AND name < ? ORDER BY updated_at DESC, id DESC LIMIT ?;

-- name: turns_of_owners
SELECT name, id, head, low, turn, turns, title, calls, message, carry, created_at, updated_at, owned_by, labels,
  turn_owner FROM sessions
WHERE turn_owner IN (SELECT value FROM json_each(?)) AND turn_owner <> '' AND turn <> '';

-- name: texts_due
SELECT name, release_at FROM sessions WHERE release_at > 0 AND (release_at <= ? OR release_at > ?);

-- name: add_session
INSERT INTO sessions (name, head, low, turn, turns, title, calls, message, carry, created_at, updated_at, owned_by, labels,
  turn_owner, release_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id;

-- name: put_session
INSERT INTO sessions (id, name, head, low, turn, turns, title, calls, message, carry, created_at, updated_at, owned_by,
  labels, turn_owner, release_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET head = excluded.head, turn = excluded.turn, turns = excluded.turns,
  title = excluded.title, calls = excluded.calls, message = excluded.message, carry = excluded.carry,
  updated_at = excluded.updated_at, owned_by = excluded.owned_by, labels = excluded.labels,
  turn_owner = excluded.turn_owner, release_at = excluded.release_at;

-- name: add_event
INSERT INTO events (session, seq, body) VALUES (?, ?, ?);

-- name: event
SELECT body FROM events WHERE session = (SELECT id FROM sessions WHERE name = ?) AND seq = ?;

-- name: user_messages
SELECT body FROM events WHERE session = (SELECT id FROM sessions WHERE name = ?)
  AND substr(body, 1, 22) = CAST('{"type":"message.user"' AS BLOB) ORDER BY seq;

-- name: events_sizes
SELECT length(body) FROM events WHERE session = (SELECT id FROM sessions WHERE name = ?) AND seq > ? ORDER BY seq LIMIT ?;

-- name: events
SELECT seq, body FROM events WHERE session = (SELECT id FROM sessions WHERE name = ?) AND seq > ? ORDER BY seq LIMIT ?;

-- name: key
SELECT seq, mark FROM keys WHERE session = (SELECT id FROM sessions WHERE name = ?) AND key = ?;

-- name: put_key
INSERT INTO keys (session, key, mark, seq) VALUES (?, ?, ?, ?);

-- name: conversation
SELECT chunks, version, claimed_by, claimed_until FROM conversations WHERE session = ? AND format = ? AND caller = ?;

-- name: conversation_with_state
SELECT chunks, version, claimed_by, claimed_until, state_version, state FROM conversations
WHERE session = ? AND format = ? AND caller = ?;

-- name: inputs
SELECT body FROM inputs WHERE conversation =
  (SELECT id FROM conversations WHERE session = ? AND format = ? AND caller = ?) AND version > ? ORDER BY version;

-- name: put_conversation
INSERT INTO conversations (session, format, caller, chunks, version, claimed_by, claimed_until, updated_at,
  state_version, state)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, x'')
ON CONFLICT (session, format, caller) DO UPDATE SET version = excluded.version, claimed_by = excluded.claimed_by,
  claimed_until = excluded.claimed_until, updated_at = excluded.updated_at
RETURNING id;

-- name: put_state
UPDATE conversations SET state = ?, state_version = ? WHERE id = ?;

-- name: drop_conversation
DELETE FROM conversations WHERE session = ? AND format = ? AND caller = ?;

-- name: drop_conversations_of
DELETE FROM conversations WHERE session = ? RETURNING id;

-- name: drop_posts_of
DELETE FROM posts WHERE session = ? RETURNING key;

-- name: drop_conversations
DELETE FROM conversations WHERE updated_at < ? AND caller NOT GLOB 'transcript:*';

-- name: transcripts
SELECT session, format, caller, chunks, version, claimed_by, claimed_until, state_version, state FROM conversations
WHERE caller GLOB 'transcript:*' ORDER BY id;

-- name: sessions_with_alias
SELECT s.name FROM aliases a JOIN sessions s ON s.id = a.session WHERE a.id = ? AND a.ns = ? ORDER BY s.id;

-- name: remember_deletion
INSERT OR REPLACE INTO deleted_sessions (foreign_id, name, deleted_at)
SELECT a.id, ?, ? FROM aliases a WHERE a.session = ? AND a.ns = 'session' AND NOT EXISTS
  (SELECT 1 FROM aliases o WHERE o.id = a.id AND o.ns = 'session' AND o.session <> a.session);

-- name: remember_transcripts
INSERT OR REPLACE INTO deleted_sessions (foreign_id, name, deleted_at)
SELECT caller, session, ? FROM conversations WHERE session = ? AND caller GLOB 'transcript:*';

-- name: deleted_sessions
SELECT foreign_id, name FROM deleted_sessions;

-- name: forget_deletion
DELETE FROM deleted_sessions WHERE foreign_id = ?;

-- name: drop_posts
DELETE FROM posts WHERE created_at < ?;

-- name: add_input
INSERT INTO inputs (conversation, version, body) VALUES (?, ?, ?);

-- name: drop_inputs
DELETE FROM inputs WHERE conversation = ?;

-- name: post
SELECT mark, answer FROM posts WHERE session = ? AND key = ?;

-- name: put_post
INSERT INTO posts (session, key, mark, answer, created_at) VALUES (?, ?, ?, ?, ?);

-- name: call
{calls} WHERE c.id = ?;

-- name: open_calls
{calls}
WHERE s.name = ? AND state IN ('queued', 'awaiting_approval', 'running') ORDER BY +entry;

-- name: all_open_calls
{calls}
WHERE state IN ('queued', 'awaiting_approval', 'running') ORDER BY c.session, +entry;

-- name: open_states
SELECT state, count(*) FROM calls WHERE state IN ('queued', 'awaiting_approval', 'running') GROUP BY state;

-- name: owned_calls
{calls}
WHERE owner = ? AND owner <> '' AND state IN ('queued', 'awaiting_approval', 'running') ORDER BY c.session, entry;

-- name: calls_of_owners
{calls}
WHERE owner IN (SELECT value FROM json_each(?)) AND owner <> '' AND state IN ('queued', 'awaiting_approval', 'running');

-- name: calls_leased
{calls}
WHERE lease > 0 AND lease <= ? AND state IN ('queued', 'awaiting_approval', 'running');

-- name: calls_due
{calls}
WHERE deadline > 0 AND deadline <= ? AND state IN ('queued', 'running');

-- name: pending_count
SELECT count(*) FROM calls WHERE client = ? AND client <> '' AND state IN ('queued', 'awaiting_approval');

-- name: oldest_pending
{calls}
WHERE client = ? AND client <> '' AND state IN ('queued', 'awaiting_approval')
ORDER BY c.created_at, c.session, entry LIMIT ?;

-- name: queued_commands
{calls}
WHERE client = ?1 AND client <> '' AND state IN ('queued', 'awaiting_approval') AND state = 'queued'
  AND (?2 = '' OR s.name = ?2)
  AND (?3 = '' OR (c.created_at, c.session, entry) > (SELECT created_at, session, entry FROM calls WHERE id = ?3))
ORDER BY c.created_at, c.session, entry LIMIT ?4;

-- name: commands_before
SELECT count(*) FROM (
  SELECT 1 FROM calls WHERE client = ?2 AND client <> '' AND state IN ('queued', 'awaiting_approval') AND state = 'queued'
    AND (created_at, session, entry) < (SELECT created_at, session, entry FROM calls WHERE id = ?1)
  LIMIT ?3);

-- name: pending_commands
{calls}
WHERE client <> '' AND (?1 = '' OR client = ?1) AND state IN ('queued', 'awaiting_approval', 'running')
ORDER BY c.created_at, c.session, entry LIMIT ?2;

-- name: completed_commands
{calls}
WHERE client <> '' AND (?1 = '' OR client = ?1) AND state = 'completed' AND ended_at >= ?3
ORDER BY ended_at DESC, c.session DESC, "end" DESC LIMIT ?2;

-- name: failed_commands
{calls}
WHERE client <> '' AND state IN ('failed', 'denied', 'cancelled', 'expired', 'lost')
ORDER BY ended_at DESC, c.session DESC, "end" DESC LIMIT ?;

-- name: failed_commands_of
{calls}
WHERE client = ? AND client <> '' AND state IN ('failed', 'denied', 'cancelled', 'expired', 'lost')
ORDER BY ended_at DESC, c.session DESC, "end" DESC LIMIT ?;

-- name: commands_changed
{calls}
WHERE client <> '' AND change > ? ORDER BY change LIMIT ?;

-- name: last_change
SELECT coalesce((SELECT CAST(value AS INTEGER) FROM meta WHERE name = 'change'), 0);

-- name: put_last_change
INSERT INTO meta (name, value) VALUES ('change', CAST(? AS TEXT)) ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: seal
INSERT OR REPLACE INTO sealed (call, session, input) VALUES (?, ?, ?);

-- name: unseal
DELETE FROM sealed WHERE call = ? RETURNING call;

-- name: sealed
SELECT input FROM sealed WHERE call = ?;

-- name: executors
SELECT client, asked_at FROM executors;

-- name: executor
SELECT asked_at FROM executors WHERE client = ?;

-- name: put_executor
INSERT INTO executors (client, asked_at) VALUES (?, ?)
ON CONFLICT (client) DO UPDATE SET asked_at = max(asked_at, excluded.asked_at);

-- name: forget_executors
DELETE FROM executors WHERE asked_at < ?;

-- name: calls
{calls}
WHERE (?1 = '' OR instr(?1, ',' || state || ',') > 0) AND c.id >= ?2 AND c.id < ?3
  AND (?6 = '' OR tool = ?6)
  AND (?7 = '' OR c.title GLOB ?7 OR tool GLOB ?7 OR c.id GLOB ?7 OR shown GLOB ?7)
  AND (?4 = '' OR (c.created_at, c.session, entry) < (SELECT created_at, session, entry FROM calls WHERE id = ?4))
ORDER BY c.created_at DESC, c.session DESC, entry DESC LIMIT ?5;

-- name: calls_of_session
{calls}
WHERE (?1 = '' OR instr(?1, ',' || state || ',') > 0) AND c.id >= ?2 AND c.id < ?3
  AND (?6 = '' OR tool = ?6)
  AND (?7 = '' OR c.title GLOB ?7 OR tool GLOB ?7 OR c.id GLOB ?7 OR shown GLOB ?7)
  AND (?4 = '' OR entry < (SELECT entry FROM calls WHERE id = ?4)) AND s.name = ?8
ORDER BY entry DESC LIMIT ?5;

-- name: put_call
-- Identifying columns never change, so that their indexes are not updated.
INSERT INTO calls (id, session, entry, state, shown, tool, title, kind, source, turn, iteration, "index", scope,
  idempotent, attempt, worker, approval, opening, ending, input_mark, deadline, created_at, started_at, ended_at, "end", reason,
  owner, lease, client, timeout, change)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET
  state = excluded.state, tool = excluded.tool, title = excluded.title, kind = excluded.kind,
  iteration = excluded.iteration, "index" = excluded."index", scope = excluded.scope,
  idempotent = excluded.idempotent, attempt = excluded.attempt, worker = excluded.worker,
  approval = excluded.approval, ending = excluded.ending, input_mark = excluded.input_mark,
  deadline = excluded.deadline, started_at = excluded.started_at, ended_at = excluded.ended_at, "end" = excluded."end",
  reason = excluded.reason, owner = excluded.owner, lease = excluded.lease, change = excluded.change;

-- name: alias
SELECT call FROM aliases WHERE session = (SELECT id FROM sessions WHERE name = ?) AND id = ? AND ns = ?;

-- name: has_alias
SELECT 1 FROM aliases WHERE session = (SELECT id FROM sessions WHERE name = ?) AND id = ? AND call <> '' LIMIT 1;

-- name: alias_everywhere
SELECT DISTINCT a.call FROM sessions s JOIN aliases a ON a.session = s.id
WHERE a.id = ?1 AND a.call <> '' AND (?2 = '' OR s.name = ?2) AND a.ns NOT IN (SELECT value FROM json_each(?3));

-- name: put_alias
INSERT OR REPLACE INTO aliases (session, id, ns, call) VALUES (?, ?, ?, ?);

-- name: approval
{approvals} WHERE a.id = ?;

-- name: approvals
{approvals}
WHERE (?1 = '' OR s.name = ?1) AND (?2 = '' OR state = ?2) AND a.id >= ?3 AND a.id < ?4
ORDER BY a.created_at, a.session, a.entry LIMIT ?5;

-- name: answered_approvals
{approvals}
WHERE (?1 = '' OR s.name = ?1) AND state <> 'pending'
ORDER BY a.created_at DESC, a.session DESC, a.entry DESC LIMIT ?2;

-- name: approvals_due
{approvals}
WHERE state = 'pending' AND expires_at > 0 AND expires_at <= ?;

-- name: put_approval
INSERT INTO approvals (id, session, call, entry, state, input_mark, attempt, description, options, expires_at,
  created_at, answered_at, option, by, reason) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET
  session = excluded.session, call = excluded.call, entry = excluded.entry, state = excluded.state,
  input_mark = excluded.input_mark, attempt = excluded.attempt, description = excluded.description,
  options = excluded.options, expires_at = excluded.expires_at, created_at = excluded.created_at,
  answered_at = excluded.answered_at, option = excluded.option, by = excluded.by, reason = excluded.reason;

-- name: owners
SELECT id, until FROM owners;

-- name: open_owners
-- Each step finds the next owner in an index, so an owner is read once, however many calls and turns it has.
WITH RECURSIVE
  of_calls (id) AS (
    SELECT ''
    UNION ALL
    SELECT (SELECT owner FROM calls WHERE owner > of_calls.id AND owner <> ''
      AND state IN ('queued', 'awaiting_approval', 'running') ORDER BY owner LIMIT 1)
    FROM of_calls WHERE id IS NOT NULL),
  of_turns (id) AS (
    SELECT ''
    UNION ALL
    SELECT (SELECT turn_owner FROM sessions WHERE turn_owner > of_turns.id AND turn_owner <> '' AND turn <> ''
      ORDER BY turn_owner LIMIT 1)
    FROM of_turns WHERE id IS NOT NULL)
SELECT id, coalesce((SELECT until FROM owners WHERE owners.id = found.id), 0)
FROM (SELECT id FROM of_calls UNION SELECT id FROM of_turns) found WHERE id <> '';

-- name: put_owner
INSERT OR REPLACE INTO owners (id, until) VALUES (?, ?);

-- name: drop_owner
DELETE FROM owners WHERE id = ?;

-- name: checkpoint
SELECT c.seq, c.version, c.state FROM checkpoints c JOIN sessions s ON s.id = c.session WHERE s.name = ?;

-- name: base
SELECT b.seq, 0, b.state FROM bases b JOIN sessions s ON s.id = b.session WHERE s.name = ?;

-- name: put_checkpoint
INSERT OR REPLACE INTO checkpoints (session, seq, version, state) VALUES (?, ?, ?, ?);

-- name: put_base
INSERT OR REPLACE INTO bases (session, seq, state) VALUES (?, ?, ?);

-- name: entries
SELECT id, body FROM entries WHERE session = (SELECT id FROM sessions WHERE name = ?) AND id < ? ORDER BY id DESC LIMIT ?;

-- name: entries_from_sizes
SELECT length(body) FROM entries WHERE session = (SELECT id FROM sessions WHERE name = ?) AND id >= ? ORDER BY id LIMIT ?;

-- name: entry_ids
SELECT id FROM entries WHERE session = (SELECT id FROM sessions WHERE name = ?) ORDER BY id DESC LIMIT ?;

-- name: entries_from
SELECT id, body FROM entries WHERE session = (SELECT id FROM sessions WHERE name = ?) AND id >= ? ORDER BY id LIMIT ?;

-- name: entry
SELECT body FROM entries WHERE session = ? AND id = ?;

-- name: put_entry
INSERT OR REPLACE INTO entries (session, id, body) VALUES (?, ?, ?);

-- name: pieces
SELECT text FROM pieces WHERE session = (SELECT id FROM sessions WHERE name = ?) AND entry = ? AND field = ? ORDER BY at;

-- name: put_piece
INSERT OR REPLACE INTO pieces (session, entry, field, at, text) VALUES (?, ?, ?, ?, ?);

-- name: drop_pieces
DELETE FROM pieces WHERE session = ? AND entry = ? AND field = ?;

-- name: row_counts
SELECT (SELECT count(*) FROM calls WHERE session = s.id), (SELECT count(*) FROM approvals WHERE session = s.id),
  (SELECT count(*) FROM entries WHERE session = s.id),
  (SELECT count(*) FROM (SELECT DISTINCT entry, field FROM pieces WHERE session = s.id)),
  (SELECT count(*) FROM blob_uses WHERE session = s.id)
FROM sessions s WHERE s.name = ?;

-- name: keys
SELECT s.name, key, mark, seq FROM keys k JOIN sessions s ON s.id = k.session
WHERE s.name = ? AND key > ? ORDER BY key LIMIT ?;

-- name: aliases
SELECT s.name, ns, a.id, call FROM aliases a JOIN sessions s ON s.id = a.session
WHERE s.name = ? AND (a.id, ns) > (?, ?) ORDER BY a.id, ns LIMIT ?;

-- name: blob_piece
SELECT p.data FROM blobs b JOIN blob_pieces p ON p.hash = b.hash WHERE b.hash = ? AND b.whole = 1 AND p.number = ?;

-- name: used_blob
SELECT hash FROM blob_uses WHERE session = (SELECT id FROM sessions WHERE name = ?) AND seq = ?;

-- name: use_blob
INSERT OR REPLACE INTO blob_uses (session, seq, hash) VALUES (?, ?, ?);

-- name: blob
SELECT size, media FROM blobs WHERE hash = ? AND whole = 1;

-- name: blob_pieces
SELECT data FROM blob_pieces WHERE hash = ? ORDER BY number;

-- name: add_blob
INSERT OR IGNORE INTO blobs (hash, size, media, whole, created_at) VALUES (?, ?, ?, 0, ?);

-- name: put_blob_piece
INSERT OR REPLACE INTO blob_pieces (hash, number, data) VALUES (?, ?, ?);

-- name: finish_blob
UPDATE blobs SET whole = 1 WHERE hash = ?;

-- name: sessions_with_blob
SELECT DISTINCT s.name FROM blob_uses u JOIN sessions s ON s.id = u.session WHERE u.hash = ? ORDER BY s.name;

-- name: token
SELECT id, hash, label, session, verbs, created_at, expires_at FROM tokens WHERE hash = ?;

-- name: tokens
SELECT id, hash, label, session, verbs, created_at, expires_at FROM tokens ORDER BY created_at, id;

-- name: put_token
-- A repeat changes nothing: its caller may not know that the first one was stored.
INSERT INTO tokens (id, hash, label, session, verbs, created_at, expires_at) SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7
WHERE NOT EXISTS (SELECT 1 FROM tokens WHERE id = ?1 AND hash = ?2);

-- name: drop_token
DELETE FROM tokens WHERE id = ? RETURNING id;

-- name: drop_tokens_of
DELETE FROM tokens WHERE session = ?;

-- name: rule
SELECT id, action, filters, reason, scope, scope_value, expires_at, uses_left, created_at, created_by, used_at, uses
FROM rules WHERE id = ?;

-- name: rules
SELECT id, action, filters, reason, scope, scope_value, expires_at, uses_left, created_at, created_by, used_at, uses
FROM rules ORDER BY created_at, id;

-- name: rules_for
SELECT id, action, filters, reason, scope, scope_value, expires_at, uses_left, created_at, created_by, used_at, uses
FROM rules WHERE (scope = 'everywhere' OR (scope = 'session' AND scope_value = ?1)
  OR (scope = 'project' AND scope_value = ?2 AND ?2 <> '')) AND uses_left <> 0 AND (expires_at = 0 OR expires_at > ?3)
ORDER BY created_at, id;

-- name: put_rule
-- A repeat changes nothing: its caller may not know that the first one was stored.
INSERT INTO rules (id, action, filters, reason, scope, scope_value, expires_at, uses_left, created_at, created_by, used_at,
  uses)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12 WHERE NOT EXISTS (SELECT 1 FROM rules WHERE id = ?1)
  AND (?5 <> 'session' OR EXISTS (SELECT 1 FROM sessions WHERE name = ?6));

-- name: use_rule
UPDATE rules SET uses = uses + ?2, used_at = max(used_at, ?3),
  uses_left = CASE WHEN uses_left < 0 THEN uses_left ELSE max(uses_left - ?2, 0) END WHERE id = ?1;

-- name: drop_rule
DELETE FROM rules WHERE id = ? RETURNING id;

-- name: drop_ended_rules
DELETE FROM rules WHERE (expires_at > 0 AND expires_at < ?1) OR (uses_left = 0 AND used_at < ?1);

-- part: session_to_copy
SELECT name, id, head, low, turn, turns, title, calls, message, carry, created_at, updated_at, owned_by, labels, turn_owner
FROM sessions

-- part: call_to_copy
SELECT session, id, '', entry, state, shown, tool, title, kind, source, turn, iteration, "index", scope, idempotent,
  attempt, worker, approval, opening, ending, input_mark, deadline, created_at, started_at, ended_at, "end", reason, owner,
  lease, client, timeout, change
FROM calls

-- part: approval_to_copy
SELECT session, id, '', call, entry, state, input_mark, attempt, description, options, expires_at, created_at, answered_at,
  option, by, reason,
  (SELECT body FROM events e WHERE a.state = 'pending' AND e.session = a.session AND e.seq = a.entry
    AND instr(body, CAST('"answerAt"' AS BLOB)) > 0)
FROM approvals a

-- name: copy_sessions
{session_to_copy} ORDER BY id LIMIT ?;

-- name: copy_sessions_after
{session_to_copy} WHERE id > ? ORDER BY id LIMIT ?;

-- name: copy_calls
{call_to_copy} ORDER BY id LIMIT ?;

-- name: copy_calls_after
{call_to_copy} WHERE id > ? ORDER BY id LIMIT ?;

-- name: copy_approvals
{approval_to_copy} ORDER BY id LIMIT ?;

-- name: copy_approvals_after
{approval_to_copy} WHERE id > ? ORDER BY id LIMIT ?;

-- name: summary
SELECT m.seq, m.version, m.body FROM summaries m JOIN sessions s ON s.id = m.session WHERE s.name = ?;

-- name: summary_place
SELECT seq, version FROM summaries WHERE session = ?;

-- name: open_call_states
SELECT state, count(*) FROM (
  SELECT state FROM calls WHERE session = ? AND state IN ('queued', 'awaiting_approval', 'running') LIMIT ?)
GROUP BY state;

-- name: stale_sessions
SELECT s.name FROM sessions s LEFT JOIN summaries m ON m.session = s.id
WHERE s.updated_at >= ? AND (m.seq IS NULL OR m.seq < s.head OR m.version < ?) ORDER BY s.updated_at DESC LIMIT ?;

-- name: outdated_sessions
SELECT s.name FROM summaries m JOIN sessions s ON s.id = m.session WHERE m.version < ? ORDER BY m.version DESC, m.active_at DESC LIMIT ?;

-- name: add_summaries
INSERT OR IGNORE INTO summaries (session, seq, version, state, title, agent, model, project, branch, labels, calls,
  open_calls, pending, failed, tokens, has_responses, started_at, active_at, body)
SELECT id, 0, 0, iif(turn = '', 'idle', 'running'), title, '', '', '', '', '', calls, 0, 0, 0, 0, 0, created_at,
  updated_at, x'7b7d'
FROM sessions WHERE updated_at >= ?;

-- name: put_summary
INSERT OR REPLACE INTO summaries (session, seq, version, state, title, agent, model, project, branch, labels, calls,
  open_calls, pending, failed, tokens, has_responses, started_at, active_at, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: meta
SELECT value FROM meta WHERE name = ?;

-- name: put_meta
INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?);

-- name: list_meta
SELECT name, value FROM meta WHERE name >= ? AND name < ? ORDER BY name;

-- name: add_meta
INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING RETURNING name;

-- name: change_meta
UPDATE meta SET value = ? WHERE name = ? AND value = ? RETURNING name;

-- name: drop_meta
DELETE FROM meta WHERE name = ? AND value = ? RETURNING name;

-- name: usage_by_ids
SELECT id, seq, at, turn, parent, model, input_tokens, output_tokens, cached_tokens, cache_write_tokens, reasoning_tokens,
  cost, currency, incomplete, of_turn FROM usage
WHERE session = (SELECT id FROM sessions WHERE name = ?) AND id IN (SELECT value FROM json_each(?));

-- name: usage_of_session
SELECT id, seq, at, turn, parent, model, input_tokens, output_tokens, cached_tokens, cache_write_tokens, reasoning_tokens,
  cost, currency, incomplete, of_turn FROM usage
WHERE session = (SELECT id FROM sessions WHERE name = ?) AND id > ? ORDER BY id LIMIT ?;

-- name: put_usage
INSERT OR REPLACE INTO usage (session, id, seq, at, turn, parent, model, input_tokens, output_tokens, cached_tokens,
  cache_write_tokens, reasoning_tokens, cost, currency, incomplete, of_turn)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: search_place
SELECT p.seq, p.version, p.fold, p.body FROM search_places p JOIN sessions s ON s.id = p.session WHERE s.name = ?;

-- name: sessions_to_index
SELECT s.name, s.head FROM sessions s LEFT JOIN search_places p ON p.session = s.id
WHERE s.updated_at >= ? AND (p.seq IS NULL OR p.seq < s.head OR p.version <> ? OR p.fold <> ?)
ORDER BY s.updated_at DESC LIMIT ?;

-- name: has_search_index
SELECT count(*) FROM main.sqlite_schema WHERE name = 'search_index';

-- name: session_for_search
SELECT id, low FROM sessions WHERE name = ?;

-- name: lock_search_place
SELECT seq, version, fold, body FROM search_places WHERE session = ?;

-- name: put_search_place
INSERT OR REPLACE INTO search_places (session, seq, version, fold, body) VALUES (?, ?, ?, ?, ?);

-- name: drop_search_rows
DELETE FROM search_rows WHERE session = ?;

-- name: drop_search_row
DELETE FROM search_rows WHERE session = ? AND entry = ?;

-- name: last_search_row
SELECT coalesce(max(id), 0) FROM search_rows;

-- name: add_search_row
INSERT INTO search_rows (id, session, entry, rank, at) VALUES (?, ?, ?, ?, ?);

-- name: add_search_words
INSERT INTO search_index (rowid, words, names) VALUES (?, ?, ?);

-- name: search
-- The order of the tables is given: the planner does not know how few rows match.
SELECT r.id, r.session, s.name, r.entry, r.rank, r.at
FROM search_index f CROSS JOIN search_rows r ON r.id = f.rowid CROSS JOIN sessions s ON s.id = r.session
WHERE f.search_index MATCH ?1 AND f.rowid < ?2 AND r.at >= ?3 AND (?4 = 0 OR r.at < ?4)
  AND (?5 IS NULL OR r.session IN (SELECT value FROM json_each(?5)))
  AND r.session NOT IN (SELECT value FROM json_each(?6))
ORDER BY f.rowid DESC LIMIT ?7;

-- name: search_rows_between
SELECT r.entry, r.rank, r.at, i.words, i.names FROM search_rows r LEFT JOIN search_index i ON i.rowid = r.id
WHERE r.session = (SELECT id FROM sessions WHERE name = ?) AND r.entry > ? AND r.entry <= ?;

-- name: sessions_of_project
SELECT session FROM summaries WHERE project = ?;

-- name: search_index_exists
SELECT rowid FROM search_index LIMIT 1;
