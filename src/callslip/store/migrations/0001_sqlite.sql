-- The first schema. A later migration only adds: an older reader named by `oldest_reader` still opens the file.

CREATE TABLE meta (
  name TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE sessions (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL UNIQUE,
  head INTEGER NOT NULL,
  low INTEGER NOT NULL DEFAULT 0,
  turn TEXT NOT NULL DEFAULT '',
  turns INTEGER NOT NULL DEFAULT 0,
  title TEXT NOT NULL DEFAULT '',
  calls INTEGER NOT NULL DEFAULT 0,
  message TEXT NOT NULL DEFAULT '',
  carry BLOB,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL
) STRICT;
CREATE INDEX sessions_by_update ON sessions (updated_at);

-- The log. All tables below can be rebuilt from it, except owners, leases and blobs.
CREATE TABLE events (
  session INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  body BLOB NOT NULL,
  PRIMARY KEY (session, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE keys (
  session INTEGER NOT NULL,
  key TEXT NOT NULL,
  mark TEXT NOT NULL,
  seq INTEGER NOT NULL,
  PRIMARY KEY (session, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE calls (
  id TEXT PRIMARY KEY,
  session INTEGER NOT NULL,
  entry INTEGER NOT NULL,
  state TEXT NOT NULL,
  shown TEXT NOT NULL,
  tool TEXT NOT NULL,
  title TEXT NOT NULL,
  kind TEXT NOT NULL,
  source TEXT NOT NULL,
  turn TEXT NOT NULL,
  iteration INTEGER NOT NULL,
  "index" INTEGER NOT NULL,
  scope TEXT NOT NULL,
  idempotent INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  worker TEXT NOT NULL,
  approval TEXT NOT NULL,
  opening TEXT NOT NULL,
  ending TEXT NOT NULL,
  input_mark TEXT NOT NULL,
  deadline INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  started_at INTEGER NOT NULL,
  ended_at INTEGER NOT NULL,
  "end" INTEGER NOT NULL,
  reason TEXT NOT NULL,
  owner TEXT NOT NULL,
  lease INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX calls_by_session ON calls (session, entry);
CREATE INDEX calls_open ON calls (session) WHERE state IN ('queued', 'awaiting_approval', 'running');

CREATE TABLE aliases (
  session INTEGER NOT NULL,
  id TEXT NOT NULL,
  ns TEXT NOT NULL,
  call TEXT NOT NULL,
  PRIMARY KEY (session, id, ns)
) STRICT, WITHOUT ROWID;

CREATE TABLE approvals (
  id TEXT PRIMARY KEY,
  session INTEGER NOT NULL,
  call TEXT NOT NULL,
  entry INTEGER NOT NULL,
  state TEXT NOT NULL,
  input_mark TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  description TEXT NOT NULL,
  options BLOB NOT NULL,
  expires_at INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  answered_at INTEGER NOT NULL,
  option TEXT NOT NULL,
  by TEXT NOT NULL,
  reason TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX approvals_pending ON approvals (session) WHERE state = 'pending';

CREATE TABLE owners (
  id TEXT PRIMARY KEY,
  until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Checkpoints: finished entries, pieces of streaming texts, and the state to continue the fold from.
CREATE TABLE entries (
  session INTEGER NOT NULL,
  id INTEGER NOT NULL,
  body BLOB NOT NULL,
  PRIMARY KEY (session, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE pieces (
  session INTEGER NOT NULL,
  entry INTEGER NOT NULL,
  field TEXT NOT NULL,
  at INTEGER NOT NULL,
  text TEXT NOT NULL,
  PRIMARY KEY (session, entry, field, at)
) STRICT, WITHOUT ROWID;

CREATE TABLE checkpoints (
  session INTEGER PRIMARY KEY,
  seq INTEGER NOT NULL,
  version INTEGER NOT NULL,
  state BLOB NOT NULL
) STRICT;

-- After retention: the state after event `seq`, from which the remaining log continues.
CREATE TABLE bases (
  session INTEGER PRIMARY KEY,
  seq INTEGER NOT NULL,
  state BLOB NOT NULL
) STRICT;

-- Large values under the hash of their content, written in pieces before the event that refers to them.
CREATE TABLE blobs (
  hash TEXT PRIMARY KEY,
  size INTEGER NOT NULL,
  media TEXT NOT NULL,
  whole INTEGER NOT NULL DEFAULT 0,
  created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE blob_pieces (
  hash TEXT NOT NULL,
  number INTEGER NOT NULL,
  data BLOB NOT NULL,
  PRIMARY KEY (hash, number)
) STRICT, WITHOUT ROWID;

-- Which events refer to a blob. A blob is deleted with the last of them.
CREATE TABLE blob_uses (
  session INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  hash TEXT NOT NULL,
  PRIMARY KEY (session, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX blob_uses_by_hash ON blob_uses (hash);
