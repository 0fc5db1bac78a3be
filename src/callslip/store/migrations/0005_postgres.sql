-- Saved rules, which answer requests for approval. The rules of a session are deleted with it, also by a server of an
-- older version. `expires_at` is 0 for a rule without an end, and `uses_left` is -1 for one without a limit.
CREATE TABLE rules (
  id text COLLATE "C" PRIMARY KEY,
  action text NOT NULL,
  filters bytea NOT NULL,
  reason text NOT NULL,
  scope text COLLATE "C" NOT NULL,
  scope_value text COLLATE "C" NOT NULL,
  expires_at bigint NOT NULL,
  uses_left bigint NOT NULL,
  created_at bigint NOT NULL,
  created_by text NOT NULL,
  used_at bigint NOT NULL,
  uses bigint NOT NULL
);
CREATE INDEX rules_by_scope ON rules (scope, scope_value);

CREATE FUNCTION callslip_delete_session_rules() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM rules WHERE scope = 'session' AND scope_value = OLD.name;
  RETURN NULL;
END
$$;
CREATE TRIGGER rules_session_deleted AFTER DELETE ON sessions
FOR EACH ROW EXECUTE FUNCTION callslip_delete_session_rules();

-- Count the uses of rules in the transaction that answers. A rule that was revoked, has expired or is used up meanwhile
-- raises CS001, so that the answer is decided again. The locks are taken in the order of ids.
CREATE FUNCTION callslip_use_rules(ids text[], counts bigint[], now_ms bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  written bigint;
BEGIN
  PERFORM 1 FROM rules r WHERE r.id = ANY (ids) ORDER BY r.id FOR NO KEY UPDATE;
  UPDATE rules AS r SET uses = r.uses + u.count, used_at = greatest(r.used_at, now_ms),
    uses_left = CASE WHEN r.uses_left < 0 THEN r.uses_left ELSE r.uses_left - u.count END
  FROM unnest(ids, counts) AS u(id, count)
  WHERE r.id = u.id AND (r.uses_left < 0 OR r.uses_left >= u.count) AND (r.expires_at = 0 OR r.expires_at > now_ms);
  GET DIAGNOSTICS written = ROW_COUNT;
  IF written <> cardinality(ids) THEN
    RAISE EXCEPTION 'a rule cannot be used any more' USING ERRCODE = 'CS001';
  END IF;
END
$$;
