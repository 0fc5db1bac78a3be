-- The search index: the words of entries and titles. It is derived from the log by a process of this version or a later
-- one, some moments after the events.
CREATE TABLE search_places (
  session bigint PRIMARY KEY,
  seq bigint NOT NULL,
  version bigint NOT NULL,
  fold bigint NOT NULL,
  body bytea NOT NULL
) WITH (fillfactor = 80);

CREATE SEQUENCE search_row_ids;
CREATE TABLE search_rows (
  id bigint PRIMARY KEY,
  session bigint NOT NULL,
  entry bigint NOT NULL,
  rank bigint NOT NULL,
  at bigint NOT NULL,
  words tsvector NOT NULL
);
CREATE UNIQUE INDEX search_rows_by_entry ON search_rows (session, entry);
CREATE INDEX search_rows_by_word ON search_rows USING gin (words) WITH (fastupdate = off);

-- What is deleted by any server, also one of an older version, is removed from the index.
CREATE FUNCTION callslip_delete_search_entries() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM search_rows r USING deleted d WHERE r.session = d.session AND r.entry = d.id;
  RETURN NULL;
END
$$;
CREATE TRIGGER search_entries_deleted AFTER DELETE ON entries REFERENCING OLD TABLE AS deleted
FOR EACH STATEMENT EXECUTE FUNCTION callslip_delete_search_entries();

CREATE FUNCTION callslip_delete_search_session() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM search_rows WHERE session = OLD.id;
  DELETE FROM search_places WHERE session = OLD.id;
  RETURN NULL;
END
$$;
CREATE TRIGGER search_session_deleted AFTER DELETE ON sessions
FOR EACH ROW EXECUTE FUNCTION callslip_delete_search_session();

-- A server with another version of the fold replaces all entries of the session.
CREATE FUNCTION callslip_replace_search_fold() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM search_places WHERE session = NEW.session AND fold <> NEW.version;
  RETURN NULL;
END
$$;
CREATE TRIGGER search_checkpoint_replaced AFTER UPDATE OF version ON checkpoints
FOR EACH ROW WHEN (OLD.version <> NEW.version) EXECUTE FUNCTION callslip_replace_search_fold();

-- Return the newest rows below an id that match. An index of words returns its rows in no order, so the rows are read in
-- blocks of ids, which are words, too: the most common word costs no more than the blocks that are needed.
CREATE FUNCTION callslip_search(
  query tsquery, below bigint, since bigint, until bigint, wanted bigint[], unwanted bigint[], row_limit bigint
) RETURNS TABLE (id bigint, session bigint, name text, entry bigint, rank bigint, at bigint)
LANGUAGE plpgsql STABLE SET enable_bitmapscan = on SET enable_seqscan = off AS $$
DECLARE
  block bigint;
  missing bigint := row_limit;
  found_rows bigint;
BEGIN
  SELECT max(r.id) / 16384 INTO block FROM search_rows r WHERE r.id < below;
  WHILE block IS NOT NULL AND missing > 0 LOOP
    RETURN QUERY
      SELECT r.id, r.session, s.name, r.entry, r.rank, r.at
      FROM search_rows r JOIN sessions s ON s.id = r.session
      WHERE r.words @@ (query && (format('''%sb%s''', U&'\E000', block))::tsquery)
        AND r.id < below AND r.at >= since AND (until = 0 OR r.at < until)
        AND (wanted IS NULL OR r.session = ANY (wanted)) AND NOT r.session = ANY (unwanted)
      ORDER BY r.id DESC LIMIT missing;
    GET DIAGNOSTICS found_rows = ROW_COUNT;
    missing := missing - found_rows;
    SELECT max(r.id) / 16384 INTO block FROM search_rows r WHERE r.id < block * 16384;
  END LOOP;
END
$$;
