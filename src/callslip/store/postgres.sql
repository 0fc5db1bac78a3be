-- What the store reads and writes outside of groups of transactions. A statement has no optional condition that its index
-- depends on: the server keeps one plan for all values of the parameters.

-- part: sessions
SELECT s.id, s.name, s.rev, s.head, s.low, s.updated_at, s.turn_owner, s.record FROM sessions s

-- part: calls
-- The name is read for the rows of the result only, so no plan reads the sessions first.
SELECT (SELECT s.name FROM sessions s WHERE s.id = c.session), c.rev, c.record FROM calls c

-- part: approvals
SELECT (SELECT s.name FROM sessions s WHERE s.id = a.session), a.record FROM approvals a

-- part: is_open
c.state IN ('queued', 'awaiting_approval', 'running')

-- part: is_pending
c.state IN ('queued', 'awaiting_approval')

-- part: has_failed
c.state IN ('failed', 'denied', 'cancelled', 'expired', 'lost')

-- part: is_wanted
(cardinality($1::text[]) = 0 OR c.state = ANY ($1)) AND ($2::text = '' OR c.tool = $2)
  AND ($3::text = '' OR c.title ~ $3 OR c.tool ~ $3 OR c.id ~ $3 OR c.client_call_id ~ $3)

-- name: session
{sessions} WHERE s.name = $1;

-- name: heads
SELECT s.name, s.id, s.head FROM sessions s WHERE s.name = ANY ($1);

-- name: sessions
-- The order is that of updated_at, which has no index. `listed_at` is at most a second older, so the rows of a page are
-- not more than a second before the last of as many rows in the order of listed_at.
WITH page AS (
  SELECT s.listed_at FROM sessions s WHERE s.listed_at <= $1 AND (s.updated_at, s.id) < ($1, $2)
  ORDER BY s.listed_at DESC LIMIT $3)
{sessions}
WHERE s.listed_at <= $1 AND s.listed_at > (SELECT min(page.listed_at) FROM page) - 1000
  AND (s.updated_at, s.id) < ($1, $2)
ORDER BY s.updated_at DESC, s.id DESC LIMIT $3;

-- name: sessions_with_prefix
{sessions}
WHERE (s.updated_at, s.id) < ($1, $2) AND s.name >= $4 AND s.name < $5
ORDER BY s.updated_at DESC, s.id DESC LIMIT $3;

-- name: turns_of_owners
{sessions} WHERE s.turn_owner = ANY ($1::text[]) AND s.turn_owner <> '' ORDER BY s.id;

-- name: texts_due
SELECT s.name, s.release_at FROM sessions s
WHERE s.has_held_text AND s.release_at > 0 AND (s.release_at <= $1 OR s.release_at > $2);

-- name: events
SELECT e.seq, e.body FROM events e
WHERE e.session = (SELECT s.id FROM sessions s WHERE s.name = $1) AND e.seq > $2 ORDER BY e.seq LIMIT $3;

-- name: events_up_to_size
SELECT p.seq, p.body FROM (
  SELECT r.seq, r.body, sum(octet_length(r.body)) OVER before AS size, row_number() OVER before AS number FROM (
    SELECT e.seq, e.body FROM events e
    WHERE e.session = (SELECT s.id FROM sessions s WHERE s.name = $1) AND e.seq > $2 ORDER BY e.seq LIMIT $3) r
  WINDOW before AS (ORDER BY r.seq ROWS UNBOUNDED PRECEDING)) p
WHERE p.size <= $4 OR p.number = 1 ORDER BY p.seq;

-- name: call
{calls} WHERE c.id = $1;

-- name: place_of_call
SELECT c.created_at, c.session, c.entry FROM calls c WHERE c.id = $1;

-- name: calls
{calls}
WHERE {is_wanted} AND (c.created_at, c.session, c.entry) < ($5, $6, $7)
ORDER BY c.created_at DESC, c.session DESC, c.entry DESC LIMIT $4;

-- name: calls_in_open_states
{calls}
WHERE {is_open} AND {is_wanted} AND (c.created_at, c.session, c.entry) < ($5, $6, $7)
ORDER BY c.created_at DESC, c.session DESC, c.entry DESC LIMIT $4;

-- name: calls_with_prefix
{calls}
WHERE {is_wanted} AND (c.created_at, c.session, c.entry) < ($5, $6, $7) AND c.id >= $8 AND c.id < $9
ORDER BY c.created_at DESC, c.session DESC, c.entry DESC LIMIT $4;

-- name: calls_of_session
{calls}
WHERE {is_wanted} AND c.session = (SELECT s.id FROM sessions s WHERE s.name = $5) AND c.entry < $6
  AND starts_with(c.id, $7)
ORDER BY c.entry DESC LIMIT $4;

-- name: open_calls
{calls} WHERE {is_open} ORDER BY c.session, c.entry;

-- name: open_states
SELECT c.state, count(*) FROM calls c WHERE {is_open} GROUP BY c.state;

-- name: calls_of_owners
{calls} WHERE c.owner = ANY ($1::text[]) AND c.owner <> '' AND {is_open} ORDER BY c.session, c.entry;

-- name: calls_due
SELECT (SELECT s.name FROM sessions s WHERE s.id = c.session), c.rev, c.record FROM (
  SELECT c.id FROM calls c WHERE c.lease > 0 AND c.lease <= $1 AND {is_open}
  UNION SELECT c.id FROM calls c WHERE c.deadline > 0 AND c.deadline <= $1 AND c.state IN ('queued', 'running')) due
JOIN calls c ON c.id = due.id;

-- name: queued_commands
{calls}
WHERE c.client = $1 AND c.client <> '' AND {is_pending} AND c.state = 'queued'
  AND ($2::text = '' OR c.session = (SELECT s.id FROM sessions s WHERE s.name = $2))
  AND (c.created_at, c.session, c.entry) > ($4, $5, $6)
ORDER BY c.created_at, c.session, c.entry LIMIT $3;

-- name: commands_before
SELECT count(*) FROM (
  SELECT 1 FROM calls c WHERE c.client = $2 AND c.client <> '' AND {is_pending} AND c.state = 'queued'
    AND (c.created_at, c.session, c.entry) < (SELECT b.created_at, b.session, b.entry FROM calls b WHERE b.id = $1)
  LIMIT $3) earlier;

-- name: pending_commands
{calls} WHERE c.client <> '' AND {is_open} ORDER BY c.created_at, c.session, c.entry LIMIT $1;

-- name: pending_commands_of
{calls} WHERE c.client = $2 AND c.client <> '' AND {is_open} ORDER BY c.created_at, c.session, c.entry LIMIT $1;

-- name: completed_commands
{calls}
WHERE c.client <> '' AND ($1::text = '' OR c.client = $1) AND c.state = 'completed' AND c.ended_at >= $3
ORDER BY c.ended_at DESC, c.session DESC, c.end_seq DESC LIMIT $2;

-- name: failed_commands
{calls}
WHERE c.client <> '' AND {has_failed} ORDER BY c.ended_at DESC, c.session DESC, c.end_seq DESC LIMIT $1;

-- name: failed_commands_of
{calls}
WHERE c.client = $2 AND c.client <> '' AND {has_failed}
ORDER BY c.ended_at DESC, c.session DESC, c.end_seq DESC LIMIT $1;

-- part: state
-- Which transactions had ended when the snapshot of this statement was taken: all before a number, without those that were
-- open. A snapshot of a standby does not have the open ones, so the number is that of the oldest of them. Then how much of
-- the WAL was flushed, and how much there was after the snapshot: a standby has only what was flushed. The last columns are
-- the number after all transactions that had ended, and the timeline of the WAL.
(CASE WHEN now.is_standby THEN pg_snapshot_xmin(now.snapshot) ELSE pg_snapshot_xmax(now.snapshot) END)::text::bigint,
  CASE WHEN now.is_standby THEN '{}' ELSE
    ARRAY(SELECT x.id::text::bigint FROM pg_snapshot_xip(now.snapshot) AS x(id)) END,
  CASE WHEN now.is_standby THEN 0 ELSE (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint END,
  CASE WHEN now.is_standby THEN 0 ELSE (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint END,
  pg_snapshot_xmax(now.snapshot)::text::bigint,
  CASE WHEN now.is_standby THEN 0
    ELSE ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint END

-- part: now
(SELECT pg_current_snapshot() AS snapshot, pg_is_in_recovery() AS is_standby) now

-- name: commands_changed
-- First the state. Then the rows of transactions that were open at an earlier time, and of those that began later, so that
-- a row is not read again for as long as any older transaction is open. Rows that were restored from a dump may have the
-- number of a transaction that is still to come; nothing has changed in them.
SELECT {state}, NULL::bigint AS change, NULL::text COLLATE "C" AS id, NULL::text, NULL::bigint, NULL::bytea FROM {now}
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, page.change::text::bigint, page.id,
  (SELECT s.name FROM sessions s WHERE s.id = page.session), page.rev, page.record
FROM (
  (SELECT c.change, c.id, c.session, c.rev, c.record FROM calls c
    WHERE c.client <> '' AND c.change = ANY ($1::text[]::xid8[]) AND (c.change, c.id) > ($2::text::xid8, $3::text)
    ORDER BY c.change, c.id LIMIT $6)
  UNION ALL
  (SELECT c.change, c.id, c.session, c.rev, c.record FROM calls c
    WHERE c.client <> '' AND (c.change, c.id) > ($4::text::xid8, $5::text)
      AND c.change < pg_snapshot_xmax(pg_current_snapshot())
    ORDER BY c.change, c.id LIMIT $6)
  ORDER BY change, id LIMIT $6) page
ORDER BY change NULLS FIRST, id;

-- name: change_cursor
SELECT {state} FROM {now};

-- name: snapshot
SELECT pg_current_snapshot()::text;

-- name: sealed
SELECT x.input FROM sealed x WHERE x.call = $1;

-- name: executors
SELECT client, asked_at FROM executors;

-- name: executor
SELECT asked_at FROM executors WHERE client = $1;

-- name: put_executor
INSERT INTO executors AS x (client, asked_at) VALUES ($1, $2)
ON CONFLICT (client) DO UPDATE SET asked_at = greatest(x.asked_at, excluded.asked_at);

-- name: forget_executors
DELETE FROM executors WHERE asked_at < $1;

-- name: alias_everywhere
{calls} JOIN (
  SELECT a.call, min(a.ns) AS ns FROM aliases a
  WHERE a.id = $1 AND a.call <> '' AND ($2::text = '' OR a.session = (SELECT s.id FROM sessions s WHERE s.name = $2))
    AND a.ns <> ALL ($3::text[])
  GROUP BY a.call) found ON found.call = c.id
ORDER BY c.session, found.ns, c.id;

-- name: approval
{approvals} WHERE a.id = $1;

-- name: approvals
{approvals}
WHERE ($1::text = '' OR a.state = $1) AND a.id >= $3 AND a.id < $4
ORDER BY a.created_at, a.session, a.entry LIMIT $2;

-- name: pending_approvals
{approvals}
WHERE a.state = 'pending' AND starts_with(a.id, $2) ORDER BY a.created_at, a.session, a.entry LIMIT $1;

-- name: approvals_of_session
{approvals}
WHERE a.session = (SELECT s.id FROM sessions s WHERE s.name = $4) AND ($1::text = '' OR a.state = $1)
  AND starts_with(a.id, $3)
ORDER BY a.created_at, a.session, a.entry LIMIT $2;

-- name: answered_approvals
{approvals}
WHERE ($1::text = '' OR a.session = (SELECT s.id FROM sessions s WHERE s.name = $1)) AND a.state <> 'pending'
ORDER BY a.created_at DESC, a.session DESC, a.entry DESC LIMIT $2;

-- name: approvals_due
{approvals} WHERE a.state = 'pending' AND a.expires_at > 0 AND a.expires_at <= $1;

-- name: owners
SELECT id, until FROM owners;

-- name: open_owners
-- Each step finds the next owner in an index, so an owner is read once, however many calls and turns it has.
WITH RECURSIVE
  of_calls (id) AS (
    SELECT ''::text COLLATE "C"
    UNION ALL
    SELECT (SELECT c.owner FROM calls c WHERE c.owner > of_calls.id AND c.owner <> '' AND {is_open}
      ORDER BY c.owner LIMIT 1)
    FROM of_calls WHERE of_calls.id IS NOT NULL),
  of_turns (id) AS (
    SELECT ''::text COLLATE "C"
    UNION ALL
    SELECT (SELECT s.turn_owner FROM sessions s WHERE s.turn_owner > of_turns.id AND s.turn_owner <> ''
      ORDER BY s.turn_owner LIMIT 1)
    FROM of_turns WHERE of_turns.id IS NOT NULL)
SELECT found.id, coalesce((SELECT o.until FROM owners o WHERE o.id = found.id), 0)
FROM (SELECT id FROM of_calls UNION SELECT id FROM of_turns) found WHERE found.id <> '';

-- name: drop_owner
DELETE FROM owners WHERE id = $1;

-- name: conversation
SELECT chunks, version, claimed_by, claimed_until, state_version, state FROM conversations
WHERE session = $1 AND format = $2 AND caller = $3;

-- name: inputs
SELECT i.body FROM inputs i JOIN conversations c ON c.id = i.conversation
WHERE c.session = $1 AND c.format = $2 AND c.caller = $3 AND i.version > $4 ORDER BY i.version;

-- name: post
SELECT mark, answer FROM posts WHERE session = $1 AND key = $2;

-- name: drop_conversations
DELETE FROM conversations WHERE updated_at < $1 AND NOT starts_with(caller, 'transcript:');

-- name: transcripts
SELECT session, format, caller, chunks, version, claimed_by, claimed_until, state_version, state FROM conversations
WHERE starts_with(caller, 'transcript:') ORDER BY id;

-- name: sessions_with_alias
SELECT s.name FROM aliases a JOIN sessions s ON s.id = a.session WHERE a.id = $1 AND a.ns = $2 ORDER BY s.id;

-- name: remember_deletion
INSERT INTO deleted_sessions AS d (foreign_id, name, deleted_at)
SELECT a.id, $1, $2 FROM aliases a WHERE a.session = $3 AND a.ns = 'session' AND NOT EXISTS
  (SELECT 1 FROM aliases o WHERE o.id = a.id AND o.ns = 'session' AND o.session <> a.session)
ON CONFLICT (foreign_id, name) DO UPDATE SET deleted_at = excluded.deleted_at;

-- name: remember_transcripts
INSERT INTO deleted_sessions AS d (foreign_id, name, deleted_at)
SELECT DISTINCT c.caller, c.session, $1::bigint FROM conversations c
WHERE c.session = $2 AND starts_with(c.caller, 'transcript:')
ON CONFLICT (foreign_id, name) DO UPDATE SET deleted_at = excluded.deleted_at;

-- name: deleted_sessions
SELECT foreign_id, name FROM deleted_sessions;

-- name: forget_deletion
DELETE FROM deleted_sessions WHERE foreign_id = $1;

-- name: drop_posts
DELETE FROM posts WHERE created_at < $1;

-- name: drop_conversations_of
DELETE FROM conversations WHERE session = $1 RETURNING id;

-- name: drop_posts_of
DELETE FROM posts WHERE session = $1 RETURNING key;

-- name: token
SELECT id, hash, label, session, verbs, created_at, expires_at FROM tokens WHERE hash = $1;

-- name: tokens
SELECT id, hash, label, session, verbs, created_at, expires_at FROM tokens ORDER BY created_at, id;

-- name: put_token
-- A repeat changes nothing: its caller may not know that the first one was stored.
INSERT INTO tokens (id, hash, label, session, verbs, created_at, expires_at)
SELECT $1::text, $2::text, $3::text, $4::text, $5::text, $6::bigint, $7::bigint
WHERE NOT EXISTS (SELECT 1 FROM tokens WHERE id = $1 AND hash = $2);

-- name: drop_token
DELETE FROM tokens WHERE id = $1 RETURNING id;

-- name: drop_tokens_of
DELETE FROM tokens WHERE session = $1;

-- name: rule
SELECT id, action, filters, reason, scope, scope_value, expires_at, uses_left, created_at, created_by, used_at, uses
FROM rules WHERE id = $1;

-- name: rules
SELECT id, action, filters, reason, scope, scope_value, expires_at, uses_left, created_at, created_by, used_at, uses
FROM rules ORDER BY created_at, id;

-- name: rules_for
SELECT id, action, filters, reason, scope, scope_value, expires_at, uses_left, created_at, created_by, used_at, uses
FROM rules WHERE (scope = 'everywhere' OR (scope = 'session' AND scope_value = $1)
  OR (scope = 'project' AND scope_value = $2 AND $2 <> '')) AND uses_left <> 0 AND (expires_at = 0 OR expires_at > $3)
ORDER BY created_at, id;

-- name: put_rule
-- A repeat changes nothing: its caller may not know that the first one was stored.
INSERT INTO rules (id, action, filters, reason, scope, scope_value, expires_at, uses_left, created_at, created_by, used_at,
  uses)
SELECT $1::text, $2::text, $3::bytea, $4::text, $5::text, $6::text, $7::bigint, $8::bigint, $9::bigint, $10::text,
  $11::bigint, $12::bigint
WHERE NOT EXISTS (SELECT 1 FROM rules WHERE id = $1)
  AND ($5 <> 'session' OR EXISTS (SELECT 1 FROM sessions WHERE name = $6));

-- name: drop_rule
DELETE FROM rules WHERE id = $1 RETURNING id;

-- name: drop_ended_rules
DELETE FROM rules WHERE (expires_at > 0 AND expires_at < $1) OR (uses_left = 0 AND used_at < $1);

-- name: checkpoint
SELECT c.seq, c.version, c.state FROM checkpoints c JOIN sessions s ON s.id = c.session WHERE s.name = $1;

-- name: base
SELECT b.seq, 0, b.state FROM bases b JOIN sessions s ON s.id = b.session WHERE s.name = $1;

-- name: entries
SELECT e.id, e.body FROM entries e
WHERE e.session = (SELECT s.id FROM sessions s WHERE s.name = $1) AND e.id < $2 ORDER BY e.id DESC LIMIT $3;

-- name: entries_from
SELECT e.id, e.body FROM entries e
WHERE e.session = (SELECT s.id FROM sessions s WHERE s.name = $1) AND e.id >= $2 ORDER BY e.id LIMIT $3;

-- name: entries_from_up_to_size
SELECT p.id, p.body FROM (
  SELECT r.id, r.body, sum(octet_length(r.body)) OVER before AS size, row_number() OVER before AS number FROM (
    SELECT e.id, e.body FROM entries e
    WHERE e.session = (SELECT s.id FROM sessions s WHERE s.name = $1) AND e.id >= $2 ORDER BY e.id LIMIT $3) r
  WINDOW before AS (ORDER BY r.id ROWS UNBOUNDED PRECEDING)) p
WHERE p.size <= $4 OR p.number = 1 ORDER BY p.id;

-- name: entry_ids
SELECT e.id FROM entries e
WHERE e.session = (SELECT s.id FROM sessions s WHERE s.name = $1) ORDER BY e.id DESC LIMIT $2;

-- name: pieces
SELECT p.text FROM pieces p
WHERE p.session = (SELECT s.id FROM sessions s WHERE s.name = $1) AND p.entry = $2 AND p.field = $3 ORDER BY p.at;

-- name: session_for_progress
-- The lock keeps the session from being deleted or pruned, but does not wait for writers.
SELECT id FROM sessions WHERE name = $1 FOR KEY SHARE;

-- name: add_checkpoint
-- A row to lock for the first checkpoint of a session.
INSERT INTO checkpoints (session, seq, version, state) VALUES ($1, 0, -1, '') ON CONFLICT (session) DO NOTHING;

-- name: lock_checkpoint
SELECT seq, version FROM checkpoints WHERE session = $1 FOR UPDATE;

-- name: put_checkpoint
UPDATE checkpoints SET seq = $2, version = $3, state = $4 WHERE session = $1;

-- name: drop_entries
DELETE FROM entries WHERE session = $1;

-- name: drop_all_pieces
DELETE FROM pieces WHERE session = $1;

-- name: drop_pieces
DELETE FROM pieces p USING unnest($2::bigint[], $3::text[]) AS u(entry, field)
WHERE p.session = $1 AND p.entry = u.entry AND p.field = u.field;

-- name: put_pieces
INSERT INTO pieces (session, entry, field, at, text)
SELECT $1, u.entry, u.field, u.at, u.text
FROM unnest($2::bigint[], $3::text[], $4::bigint[], $5::bytea[]) AS u(entry, field, at, text)
ON CONFLICT (session, entry, field, at) DO UPDATE SET text = excluded.text;

-- name: entries_to_change
SELECT id, body FROM entries WHERE session = $1 AND id = ANY ($2::bigint[]);

-- name: put_entries
INSERT INTO entries (session, id, body) SELECT $1, u.id, u.body FROM unnest($2::bigint[], $3::bytea[]) AS u(id, body)
ON CONFLICT (session, id) DO UPDATE SET body = excluded.body;

-- name: blob
SELECT size, media, created_at FROM blobs WHERE hash = $1 AND whole;

-- name: blob_pieces
SELECT p.data FROM blob_pieces p WHERE p.hash = $1 AND p.number >= $2 AND p.number < $3 ORDER BY p.number;

-- name: blob_piece
SELECT p.data FROM blobs b JOIN blob_pieces p ON p.hash = b.hash WHERE b.hash = $1 AND b.whole AND p.number = $2;

-- name: keep_blob
UPDATE blobs SET created_at = $2 WHERE hash = $1 AND whole RETURNING hash;

-- name: put_blob_piece
-- The row of the blob is locked until the commit, so that it is not deleted without this piece.
WITH blob AS (
  INSERT INTO blobs AS b (hash, size, media, created_at) VALUES ($1, $2, $3, $4)
  ON CONFLICT (hash) DO UPDATE SET created_at = greatest(b.created_at, excluded.created_at) RETURNING b.hash)
INSERT INTO blob_pieces (hash, number, data) SELECT blob.hash, $5, $6 FROM blob
ON CONFLICT (hash, number) DO UPDATE SET data = excluded.data;

-- name: finish_blob
UPDATE blobs SET whole = true
WHERE hash = $1 AND (SELECT count(*) FROM blob_pieces p WHERE p.hash = $1) = $2 RETURNING hash;

-- name: lock_blobs
SELECT hash FROM blobs WHERE hash = ANY ($1::text[]) AND created_at < $2 ORDER BY hash FOR UPDATE;

-- name: unused_blobs
SELECT b.hash FROM blobs b
WHERE b.hash = ANY ($1::text[]) AND NOT EXISTS (SELECT 1 FROM blob_uses u WHERE u.hash = b.hash);

-- name: old_unused_blobs
-- Of a page of blobs: the last one, and those that are older than a time and that no event uses.
SELECT max(p.hash), array_agg(p.hash ORDER BY p.hash) FILTER (
  WHERE p.created_at < $2 AND (SELECT u.hash FROM blob_uses u WHERE u.hash = p.hash LIMIT 1) IS NULL)
FROM (SELECT b.hash, b.created_at FROM blobs b WHERE b.hash > $1 ORDER BY b.hash LIMIT $3) p;

-- name: drop_blob_pieces
DELETE FROM blob_pieces WHERE hash = ANY ($1::text[]);

-- name: drop_blobs
DELETE FROM blobs WHERE hash = ANY ($1::text[]);

-- name: used_blob
SELECT u.hash FROM blob_uses u WHERE u.session = (SELECT s.id FROM sessions s WHERE s.name = $1) AND u.seq = $2;

-- name: use_blobs
INSERT INTO blob_uses (session, seq, hash) SELECT $1, u.seq, u.hash FROM unnest($2::bigint[], $3::text[]) AS u(seq, hash)
ON CONFLICT (session, seq) DO UPDATE SET hash = excluded.hash;

-- name: sessions_with_blob
SELECT DISTINCT s.name FROM blob_uses u JOIN sessions s ON s.id = u.session WHERE u.hash = $1 ORDER BY s.name;

-- name: row_counts
-- Of a part of a session: the entries after one place in its log and up to another one. The last part has no end. The
-- first column is the length of the log.
SELECT r.length,
  (SELECT count(*) FROM calls c WHERE c.session = r.id AND c.entry > r.after AND c.entry <= r.last),
  (SELECT count(*) FROM approvals a WHERE a.session = r.id AND a.entry > r.after AND a.entry <= r.last),
  (SELECT count(*) FROM entries e WHERE e.session = r.id AND e.id > r.after AND e.id <= r.last),
  (SELECT count(*) FROM (
    SELECT DISTINCT p.entry, p.field FROM pieces p
    WHERE p.session = r.id AND p.entry > r.after AND p.entry <= r.last) t),
  (SELECT count(*) FROM blob_uses u WHERE u.session = r.id AND u.seq > r.after AND u.seq <= r.last)
FROM (
  SELECT s.id, s.head - s.low AS length, s.low + $2::bigint AS after,
    CASE WHEN s.head - s.low > $3::bigint THEN s.low + $3::bigint ELSE 9223372036854775807 END AS last
  FROM sessions s WHERE s.name = $1) r;

-- name: keys
SELECT $1, k.key, k.mark, k.seq FROM keys k
WHERE k.session = (SELECT s.id FROM sessions s WHERE s.name = $1) AND k.key > $2 ORDER BY k.key LIMIT $3;

-- name: aliases
SELECT $1, a.ns, a.id, a.call FROM aliases a
WHERE a.session = (SELECT s.id FROM sessions s WHERE s.name = $1) AND (a.id, a.ns) > ($2, $3)
ORDER BY a.id, a.ns LIMIT $4;

-- name: lock_session
SELECT id, low FROM sessions WHERE name = $1 FOR UPDATE;

-- name: drop_session
DELETE FROM sessions WHERE id = $1;

-- name: pending_by_client
SELECT c.client, count(*) FROM calls c WHERE c.session = $1 AND c.client <> '' AND {is_pending}
GROUP BY c.client ORDER BY c.client;

-- name: lock_queues
SELECT client FROM queues WHERE client = ANY ($1::text[]) ORDER BY client FOR NO KEY UPDATE;

-- name: reduce_queues
UPDATE queues q SET waiting = greatest(0, q.waiting - u.count) FROM unnest($1::text[], $2::bigint[]) AS u(client, count)
WHERE q.client = u.client;

-- name: blobs_of_session
SELECT DISTINCT hash FROM blob_uses WHERE session = $1;

-- name: pruned_events
WITH removed AS (DELETE FROM events WHERE session = $1 AND seq <= $2 RETURNING 1) SELECT count(*) FROM removed;

-- name: prune_keys
DELETE FROM keys WHERE session = $1 AND seq <= $2;

-- name: prune_entries
DELETE FROM entries WHERE session = $1 AND id <= $2 AND id <> ALL ($3::bigint[]);

-- name: prune_approvals
DELETE FROM approvals WHERE session = $1 AND entry <= $2 AND entry <> ALL ($3::bigint[]);

-- name: prune_calls
DELETE FROM calls WHERE session = $1 AND end_seq > 0 AND end_seq <= $2 RETURNING id;

-- name: prune_aliases
DELETE FROM aliases WHERE session = $1 AND call = ANY ($2::text[]);

-- name: prune_sealed
DELETE FROM sealed WHERE call = ANY ($1::text[]);

-- name: prune_blob_uses
DELETE FROM blob_uses WHERE session = $1 AND seq <= $2 RETURNING hash;

-- name: prune_session
UPDATE sessions SET low = $2, rev = rev + 1 WHERE id = $1;

-- name: put_base
INSERT INTO bases (session, seq, state) VALUES ($1, $2, $3)
ON CONFLICT (session) DO UPDATE SET seq = excluded.seq, state = excluded.state;

-- What `verify` checks in the whole database is read in pages, each a number of rows after a key: no statement may take
-- long, however large the database is. A subquery finds its row in an index, so that no plan reads a table.

-- name: heads_to_check
SELECT p.id, p.name, p.low, p.head, coalesce((SELECT min(e.seq) FROM events e WHERE e.session = p.id), p.low + 1),
  coalesce((SELECT max(e.seq) FROM events e WHERE e.session = p.id), p.low)
FROM (SELECT s.id, s.name, s.low, s.head FROM sessions s WHERE s.id > $1 ORDER BY s.id LIMIT $2) p ORDER BY p.id;

-- name: queues_to_check
-- Each step finds the next client, which has a row or a pending command.
WITH RECURSIVE found (client, number) AS (
  SELECT $1::text COLLATE "C", 0
  UNION ALL
  SELECT least(
    (SELECT q.client FROM queues q WHERE q.client > found.client ORDER BY q.client LIMIT 1),
    (SELECT c.client FROM calls c WHERE c.client > found.client AND c.client <> '' AND {is_pending}
      ORDER BY c.client LIMIT 1)),
    found.number + 1
  FROM found WHERE found.client IS NOT NULL AND found.number < $2)
SELECT f.client, coalesce((SELECT q.waiting FROM queues q WHERE q.client = f.client), 0),
  (SELECT count(*) FROM calls c WHERE c.client = f.client AND c.client <> '' AND {is_pending})
FROM found f WHERE f.number > 0 AND f.client IS NOT NULL ORDER BY f.client;

-- name: call_copies
SELECT c.id, c.entry, c.state, c.client_call_id, c.tool, c.title, c.deadline, c.created_at, c.ended_at, c.end_seq,
  c.owner, c.lease, c.client, c.record
FROM calls c
WHERE c.session = (SELECT s.id FROM sessions s WHERE s.name = $1) AND (c.entry, c.id) > ($2, $3)
ORDER BY c.entry, c.id LIMIT $4;

-- name: approval_copies
SELECT a.id, a.entry, a.call, a.state, a.expires_at, a.created_at, a.record
FROM approvals a
WHERE a.session = (SELECT s.id FROM sessions s WHERE s.name = $1) AND (a.entry, a.id) > ($2, $3)
ORDER BY a.entry, a.id LIMIT $4;

-- name: used_blobs_to_check
SELECT p.hash, coalesce((SELECT b.whole FROM blobs b WHERE b.hash = p.hash), false)
FROM (SELECT u.hash FROM blob_uses u WHERE u.hash > $1 ORDER BY u.hash LIMIT $2) p ORDER BY p.hash;

-- name: identity
-- What tells a database from any other, for all of its addresses.
SELECT concat_ws('/',
  CASE WHEN has_function_privilege('pg_control_system()', 'EXECUTE')
    THEN (SELECT system_identifier::text FROM pg_control_system())
    ELSE coalesce(host(inet_server_addr()), '') || ':' || current_setting('port') END,
  (SELECT oid FROM pg_database WHERE datname = current_database()), current_schema());

-- name: users
SELECT coalesce(host(client_addr), 'this machine'), count(*) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND starts_with(application_name, $1)
  AND application_name <> $2
GROUP BY 1 ORDER BY 1;

-- name: lanes_used
-- Every write changes the row of a lane, and a process that ends removes the rows of its lanes, but not their numbers.
SELECT count(*), coalesce(sum(last), 0)::text, coalesce(max(used_at), 0),
  CASE WHEN has_sequence_privilege('lane_ids', 'SELECT, USAGE') THEN pg_sequence_last_value('lane_ids'::regclass) END,
  (SELECT concat_ws(' ', count(*), sum(rev), max(id)) FROM sessions)
FROM lanes;

-- name: last_ids
-- A user who may only read the tables does not see the ids that were given to rows which are deleted.
SELECT
  greatest((SELECT max(id) FROM sessions), CASE WHEN has_sequence_privilege('session_ids', 'SELECT, USAGE')
    THEN pg_sequence_last_value('session_ids'::regclass) END, 0),
  greatest((SELECT max(id) FROM conversations), CASE WHEN has_sequence_privilege(s.name, 'SELECT, USAGE')
    THEN pg_sequence_last_value(s.name::regclass) END, 0)
FROM pg_get_serial_sequence('conversations', 'id') AS s(name);

-- name: missing_rights
-- What a user may not do who fills a database: a program needs the rights on the tables, only a copy sets the sequences.
SELECT concat(r.name, ' on the table ', t.name)
FROM unnest($1::text[]) AS t(name), unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS r(name)
WHERE NOT has_table_privilege(t.name, r.name)
UNION ALL
SELECT concat('UPDATE on the sequence ', s.name)
FROM unnest(ARRAY['session_ids', pg_get_serial_sequence('conversations', 'id')]) AS s(name)
WHERE NOT has_sequence_privilege(s.name, 'UPDATE');

-- name: keep_ids
SELECT setval('session_ids', greatest($1::bigint, 1), $1::bigint > 0),
  setval(pg_get_serial_sequence('conversations', 'id'), greatest($2::bigint, 1), $2::bigint > 0);

-- name: put_meta
INSERT INTO meta (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: add_meta
INSERT INTO meta (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING RETURNING name;

-- name: change_meta
UPDATE meta SET value = $1 WHERE name = $2 AND value = $3 RETURNING name;

-- name: drop_meta
DELETE FROM meta WHERE name = $1 AND value = $2 RETURNING name;

-- name: count_queues
INSERT INTO queues (client, waiting)
SELECT c.client, count(*) FROM calls c WHERE c.client <> '' AND {is_pending} GROUP BY c.client;

-- name: copy_sessions
INSERT INTO sessions (id, name, rev, head, low, updated_at, listed_at, turn_owner, release_at, has_held_text, record)
SELECT u.id, u.name, 1, u.head, u.low, u.updated_at, u.updated_at, u.turn_owner, u.release_at, u.release_at > 0, u.record
FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[], $7::bigint[], $8::bytea[])
  AS u(id, name, head, low, updated_at, turn_owner, release_at, record);

-- name: copy_calls
INSERT INTO calls (id, session, entry, state, client_call_id, tool, title, deadline, created_at, ended_at, end_seq, owner,
  lease, client, change, rev, record)
SELECT u.id, u.session, u.entry, u.state, u.client_call_id, u.tool, u.title, u.deadline, u.created_at, u.ended_at,
  u.end_seq, u.owner, u.lease, u.client, pg_current_xact_id(), 1, u.record
FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bigint[],
    $9::bigint[], $10::bigint[], $11::bigint[], $12::text[], $13::bigint[], $14::text[], $15::bytea[])
  AS u(id, session, entry, state, client_call_id, tool, title, deadline, created_at, ended_at, end_seq, owner, lease,
    client, record);

-- name: copy_approvals
INSERT INTO approvals (id, session, call, entry, state, expires_at, created_at, record)
SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::bigint[], $7::bigint[],
  $8::bytea[]);

-- name: summary
SELECT m.seq, m.version, m.body FROM summaries m JOIN sessions s ON s.id = m.session WHERE s.name = $1;

-- name: lock_summary
SELECT m.seq, m.version FROM summaries m WHERE m.session = $1 FOR UPDATE;

-- name: open_call_states
SELECT o.state, count(*) FROM (
  SELECT c.state FROM calls c WHERE c.session = $1 AND c.state IN ('queued', 'awaiting_approval', 'running') LIMIT $2) o
GROUP BY o.state;

-- name: stale_sessions
-- `listed_at` is at most a second older than `updated_at`.
SELECT s.name FROM sessions s LEFT JOIN summaries m ON m.session = s.id
WHERE s.listed_at >= $1::bigint - 1000 AND (m.seq IS NULL OR m.seq < s.head OR m.version < $2)
ORDER BY s.listed_at DESC LIMIT $3;

-- name: outdated_sessions
SELECT s.name FROM summaries m JOIN sessions s ON s.id = m.session WHERE m.version < $1 ORDER BY m.version DESC, m.active_at DESC LIMIT $2;

-- name: add_summaries
INSERT INTO summaries (session, seq, version, state, title, agent, model, project, branch, labels, calls, open_calls,
  pending, failed, tokens, has_responses, started_at, active_at, body)
SELECT s.id, 0, 0, 'idle', '', '', '', '', '', '', 0, 0, 0, 0, 0, 0, s.updated_at, s.updated_at, '{}'
FROM sessions s WHERE s.listed_at >= $1::bigint - 1000 ON CONFLICT DO NOTHING;

-- name: add_summary
INSERT INTO summaries (session, seq, version, state, title, agent, model, project, branch, labels, calls, open_calls,
  pending, failed, tokens, has_responses, started_at, active_at, body)
VALUES ($1, -1, 0, 'idle', '', '', '', '', '', '', 0, 0, 0, 0, 0, 0, 0, 0, '{}') ON CONFLICT DO NOTHING;

-- name: put_summary
UPDATE summaries SET seq = $2, version = $3, state = $4, title = $5, agent = $6, model = $7, project = $8, branch = $9,
  labels = $10, calls = $11, open_calls = $12, pending = $13, failed = $14, tokens = $15,
  has_responses = $16, started_at = $17, active_at = $18, body = $19
WHERE session = $1;

-- name: meta
SELECT m.value FROM meta m WHERE m.name = $1;

-- name: list_meta
SELECT m.name, m.value FROM meta m WHERE starts_with(m.name, $1) ORDER BY m.name;

-- name: usage_by_ids
SELECT u.id, u.seq, u.at, u.turn, u.parent, u.model, u.input_tokens, u.output_tokens, u.cached_tokens,
  u.cache_write_tokens, u.reasoning_tokens, u.cost, u.currency, u.incomplete, u.of_turn FROM usage u
WHERE u.session = (SELECT s.id FROM sessions s WHERE s.name = $1) AND u.id = ANY ($2::text[]);

-- name: usage_of_session
SELECT u.id, u.seq, u.at, u.turn, u.parent, u.model, u.input_tokens, u.output_tokens, u.cached_tokens,
  u.cache_write_tokens, u.reasoning_tokens, u.cost, u.currency, u.incomplete, u.of_turn FROM usage u
WHERE u.session = (SELECT s.id FROM sessions s WHERE s.name = $1) AND u.id > $2 ORDER BY u.id LIMIT $3;

-- name: put_usage
INSERT INTO usage (session, id, seq, at, turn, parent, model, input_tokens, output_tokens, cached_tokens,
  cache_write_tokens, reasoning_tokens, cost, currency, incomplete, of_turn)
SELECT $1, u.* FROM unnest($2::text[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::bigint[],
  $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::double precision[], $14::text[], $15::bigint[],
  $16::bigint[]) AS u
ON CONFLICT (session, id) DO UPDATE SET seq = excluded.seq, at = excluded.at, turn = excluded.turn,
  parent = excluded.parent, model = excluded.model, input_tokens = excluded.input_tokens,
  output_tokens = excluded.output_tokens, cached_tokens = excluded.cached_tokens,
  cache_write_tokens = excluded.cache_write_tokens, reasoning_tokens = excluded.reasoning_tokens, cost = excluded.cost,
  currency = excluded.currency, incomplete = excluded.incomplete,
  of_turn = excluded.of_turn;

-- name: drop_usage
DELETE FROM usage WHERE session = $1;

-- name: search_place
SELECT p.seq, p.version, p.fold, p.body FROM search_places p JOIN sessions s ON s.id = p.session WHERE s.name = $1;

-- name: sessions_to_index
-- `listed_at` is at most a second older than `updated_at`.
SELECT s.name, s.head FROM sessions s LEFT JOIN search_places p ON p.session = s.id
WHERE s.listed_at >= $1::bigint - 1000 AND (p.seq IS NULL OR p.seq < s.head OR p.version <> $2 OR p.fold <> $3)
ORDER BY s.listed_at DESC LIMIT $4;

-- name: has_search_index
SELECT count(*) FROM pg_class WHERE relname = 'search_rows'
  AND relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema());

-- name: session_for_search
-- The lock keeps the session from being deleted or pruned, but does not wait for writers.
SELECT id, low FROM sessions WHERE name = $1 FOR KEY SHARE;

-- name: add_search_place
-- A row to lock for the first place of a session.
INSERT INTO search_places (session, seq, version, fold, body) VALUES ($1, -2, 0, 0, '') ON CONFLICT DO NOTHING;

-- name: lock_search_place
SELECT seq, version, fold, body FROM search_places WHERE session = $1 FOR UPDATE;

-- name: put_search_place
UPDATE search_places SET seq = $2, version = $3, fold = $4, body = $5 WHERE session = $1;

-- name: drop_search_rows
DELETE FROM search_rows WHERE session = $1;

-- name: drop_search_row
DELETE FROM search_rows WHERE session = $1 AND entry = ANY ($2::bigint[]);

-- name: add_search_rows
-- Each row has a word for its block of ids; see callslip_search.
INSERT INTO search_rows (id, session, entry, rank, at, words)
SELECT n.id, $1, n.entry, n.rank, n.at, (n.words || format(' ''%sb%s''', U&'\E000', n.id / 16384))::tsvector
FROM (SELECT nextval('search_row_ids') AS id, t.*
  FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::text[]) AS t(entry, rank, at, words)) AS n;

-- name: search
SELECT f.* FROM callslip_search($1::text::tsquery, $2, $3, $4, $5::bigint[], $6::bigint[], $7) AS f;

-- name: different_search_rows
SELECT coalesce(r.entry, e.entry) FROM (
  SELECT s.* FROM search_rows s
  WHERE s.session = (SELECT id FROM sessions WHERE name = $1) AND s.entry > $2 AND s.entry <= $3
) AS r FULL JOIN unnest($4::bigint[], $5::bigint[], $6::bigint[], $7::text[]) AS e(entry, rank, at, words)
  ON e.entry = r.entry
WHERE r.entry IS NULL OR e.entry IS NULL OR r.rank <> e.rank OR r.at <> e.at
  OR r.words <> (e.words || format(' ''%sb%s''', U&'\E000', r.id / 16384))::tsvector
ORDER BY 1;

-- name: sessions_of_project
SELECT m.session FROM summaries m WHERE m.project = $1;
