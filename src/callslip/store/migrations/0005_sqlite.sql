-- Shown texts in records contain U+FFFD instead of NUL, which PostgreSQL cannot store; the events keep their texts. The
-- function replace() of SQLite does not find NUL, but the JSON of a text has it as \u0000. Escaped backslashes become
-- char(1) meanwhile, which JSON never contains: the JSON \\u0000 is not NUL.

UPDATE sessions SET title = (
  SELECT said ->> 0 FROM (
    SELECT replace(replace(replace(texts, '\\', char(1)), '\u0000', char(65533)), char(1), '\\') AS said
    FROM (SELECT json_array(title) AS texts)))
WHERE instr(title, char(0));

UPDATE calls SET (tool, title, kind, worker, reason, client) = (
  SELECT said ->> 0, said ->> 1, said ->> 2, said ->> 3, said ->> 4, said ->> 5 FROM (
    SELECT replace(replace(replace(texts, '\\', char(1)), '\u0000', char(65533)), char(1), '\\') AS said
    FROM (SELECT json_array(tool, title, kind, worker, reason, client) AS texts)))
WHERE instr(tool || title || kind || worker || reason || client, char(0));

UPDATE approvals SET (description, option, by, reason) = (
  SELECT said ->> 0, said ->> 1, said ->> 2, said ->> 3 FROM (
    SELECT replace(replace(replace(texts, '\\', char(1)), '\u0000', char(65533)), char(1), '\\') AS said
    FROM (SELECT json_array(description, option, by, reason) AS texts)))
WHERE instr(description || option || by || reason, char(0));

-- The owners of open turns, each found without reading the others' sessions. Older versions use `sessions_at_work`.
CREATE INDEX IF NOT EXISTS turns_owned ON sessions (turn_owner) WHERE turn_owner <> '';
