-- Commands: calls that somebody else runs, of which a client may have many at once.

ALTER TABLE calls ADD COLUMN client TEXT NOT NULL DEFAULT '';
ALTER TABLE calls ADD COLUMN timeout INTEGER NOT NULL DEFAULT 0;

-- Grows with every write of any command: what another process has not seen yet has a larger one than all it has seen.
ALTER TABLE calls ADD COLUMN change INTEGER NOT NULL DEFAULT 0;

CREATE INDEX commands_waiting ON calls (client, created_at, session, entry)
  WHERE client <> '' AND state IN ('queued', 'awaiting_approval');
CREATE INDEX commands_open ON calls (created_at, session, entry)
  WHERE client <> '' AND state IN ('queued', 'awaiting_approval', 'running');
CREATE INDEX commands_completed ON calls (ended_at, session, "end") WHERE client <> '' AND state = 'completed';
CREATE INDEX commands_failed ON calls (ended_at, session, "end")
  WHERE client <> '' AND state IN ('failed', 'denied', 'cancelled', 'expired', 'lost');
CREATE INDEX commands_failed_by_client ON calls (client, ended_at, session, "end")
  WHERE client <> '' AND state IN ('failed', 'denied', 'cancelled', 'expired', 'lost');
CREATE INDEX commands_by_change ON calls (change) WHERE client <> '';

-- Whoever polls names a command by an id of their own, and not its session.
CREATE INDEX aliases_by_id ON aliases (id);

-- What is due is found without looking at all that is open.
CREATE INDEX calls_owned ON calls (owner) WHERE owner <> '' AND state IN ('queued', 'awaiting_approval', 'running');
CREATE INDEX calls_leased ON calls (lease) WHERE lease > 0 AND state IN ('queued', 'awaiting_approval', 'running');
CREATE INDEX calls_due ON calls (deadline) WHERE deadline > 0 AND state IN ('queued', 'running');
CREATE INDEX approvals_due ON approvals (expires_at) WHERE state = 'pending' AND expires_at > 0;

-- The arguments of an open command as they were given, where the log has them without their secrets: for who runs it.
CREATE TABLE sealed (
  call TEXT PRIMARY KEY,
  session INTEGER NOT NULL,
  input BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- Whoever ends or deletes a command, a process of an older version too, takes these with it,
CREATE TRIGGER unsealed_by_end AFTER UPDATE OF state ON calls
WHEN NEW.client <> '' AND NEW.state NOT IN ('queued', 'awaiting_approval', 'running') BEGIN
  DELETE FROM sealed WHERE call = NEW.id;
END;
CREATE TRIGGER unsealed_by_deletion AFTER DELETE ON calls WHEN OLD.client <> '' BEGIN
  DELETE FROM sealed WHERE call = OLD.id;
END;

-- and an older one, which numbers nothing, is heard of all the same.
CREATE TRIGGER commands_changed AFTER UPDATE OF state ON calls WHEN NEW.client <> '' AND NEW.change = OLD.change BEGIN
  UPDATE meta SET value = CAST(CAST(value AS INTEGER) + 1 AS TEXT) WHERE name = 'change';
  UPDATE calls SET change = (SELECT CAST(value AS INTEGER) FROM meta WHERE name = 'change') WHERE id = NEW.id;
END;

-- When the executors of a client last asked for work.
CREATE TABLE executors (
  client TEXT PRIMARY KEY,
  asked_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
