-- The search index: the words of entries and titles. It is derived from the log by a process of this version or a later
-- one, some moments after the events.
CREATE TABLE search_places (
  session INTEGER PRIMARY KEY,
  seq INTEGER NOT NULL,
  version INTEGER NOT NULL,
  fold INTEGER NOT NULL,
  body BLOB NOT NULL
) STRICT;

CREATE TABLE search_rows (
  id INTEGER PRIMARY KEY,
  session INTEGER NOT NULL,
  entry INTEGER NOT NULL,
  rank INTEGER NOT NULL,
  at INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX search_rows_by_entry ON search_rows (session, entry);

-- The texts are words that are separated by spaces, so the tokenizer only splits them. With secure-delete the words of a
-- deleted row are removed at once, not when parts of the index are merged.
CREATE VIRTUAL TABLE search_index USING fts5 (words, names, tokenize = 'ascii');
INSERT INTO search_index (search_index, rank) VALUES ('secure-delete', 1);

-- What is deleted by any process, also one of an older version, is removed from the index.
CREATE TRIGGER search_row_deleted AFTER DELETE ON search_rows BEGIN
  DELETE FROM search_index WHERE rowid = OLD.id;
END;
CREATE TRIGGER search_entry_deleted AFTER DELETE ON entries BEGIN
  DELETE FROM search_rows WHERE session = OLD.session AND entry = OLD.id;
END;
CREATE TRIGGER search_session_deleted AFTER DELETE ON sessions BEGIN
  DELETE FROM search_rows WHERE session = OLD.id;
  DELETE FROM search_places WHERE session = OLD.id;
END;

-- A process with another version of the fold replaces all entries of the session.
CREATE TRIGGER search_checkpoint_replaced AFTER INSERT ON checkpoints BEGIN
  DELETE FROM search_places WHERE session = NEW.session AND fold <> NEW.version;
END;
