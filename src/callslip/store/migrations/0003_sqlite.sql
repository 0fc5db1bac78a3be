-- Commands: calls that a worker runs. A client can have many at once.

ALTER TABLE calls ADD COLUMN client TEXT NOT NULL DEFAULT '';
ALTER TABLE calls ADD COLUMN timeout INTEGER NOT NULL DEFAULT 0;

-- Grows with every write to any command, so that another process finds the changes that it has not seen.
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

-- A client polls a command by its own id, without the session.
CREATE INDEX aliases_by_id ON aliases (id);

-- These find what is due without reading all open calls.
CREATE INDEX calls_owned ON calls (owner) WHERE owner <> '' AND state IN ('queued', 'awaiting_approval', 'running');
CREATE INDEX calls_leased ON calls (lease) WHERE lease > 0 AND state IN ('queued', 'awaiting_approval', 'running');
CREATE INDEX calls_due ON calls (deadline) WHERE deadline > 0 AND state IN ('queued', 'running');
CREATE INDEX approvals_due ON approvals (expires_at) WHERE state = 'pending' AND expires_at > 0;

-- The unredacted arguments of an open command for its worker, if the log has them redacted.
CREATE TABLE sealed (
  call TEXT PRIMARY KEY,
  session INTEGER NOT NULL,
  input BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- They are deleted when a command ends or is deleted, also by a process of an older version.
CREATE TRIGGER unsealed_by_end AFTER UPDATE OF state ON calls
WHEN NEW.client <> '' AND NEW.state NOT IN ('queued', 'awaiting_approval', 'running') BEGIN
  DELETE FROM sealed WHERE call = NEW.id;
END;
CREATE TRIGGER unsealed_by_deletion AFTER DELETE ON calls WHEN OLD.client <> '' BEGIN
  DELETE FROM sealed WHERE call = OLD.id;
END;

-- An older version does not number its changes, so this does.
CREATE TRIGGER commands_changed AFTER UPDATE OF state ON calls WHEN NEW.client <> '' AND NEW.change = OLD.change BEGIN
  UPDATE meta SET value = CAST(CAST(value AS INTEGER) + 1 AS TEXT) WHERE name = 'change';
  UPDATE calls SET change = (SELECT CAST(value AS INTEGER) FROM meta WHERE name = 'change') WHERE id = NEW.id;
END;

-- When the workers of a client last asked for work.
CREATE TABLE executors (
  client TEXT PRIMARY KEY,
  asked_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
