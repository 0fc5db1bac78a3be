"""Which schema of a PostgreSQL database a ledger is in: the first one of search_path, and no other.

The server looks for a name in all schemas of search_path. Without care a ledger would use the tables of another one
wherever it has none of its own.
"""

from __future__ import annotations

import re

from callslip.store.sql import migrations

MAX_NAME_BYTES = 63
CURRENT_SCHEMA = """
SELECT pg_backend_pid(), coalesce(current_schema()::text, ''), coalesce(quote_ident(current_schema()), ''),
  current_setting('search_path'), current_user::text
"""
"""The process of the server, its schema as it is and as an identifier, and what the schema was found by."""
_SCHEMA_ID = "(SELECT oid FROM pg_namespace WHERE nspname = current_schema())"
HAS_META = f"SELECT EXISTS (SELECT FROM pg_class WHERE relname = 'meta' AND relnamespace = {_SCHEMA_ID})"
EXISTING_TABLES = f"""
SELECT relname::text FROM pg_class WHERE relnamespace = {_SCHEMA_ID} AND relname = ANY ($1::text[]) ORDER BY relname
"""
MISSING = f"""
SELECT t.name FROM unnest($1::text[]) AS t(name) WHERE NOT EXISTS (
  SELECT FROM pg_class c WHERE c.relname = t.name AND c.relnamespace = {_SCHEMA_ID} AND pg_table_is_visible(c.oid))
UNION ALL
SELECT f.name || '()' FROM unnest($2::text[]) AS f(name) WHERE NOT EXISTS (
  SELECT FROM pg_proc p WHERE p.proname = f.name AND p.pronamespace = {_SCHEMA_ID} AND pg_function_is_visible(p.oid))
"""
"""The tables and functions that the statements of a ledger would not find in its schema."""
_PATH_ITEM = re.compile(r'"((?:[^"]|"")*)"|([^",\s]+)')
_CREATED = re.compile(r"^CREATE (TABLE|SEQUENCE|FUNCTION|OR REPLACE FUNCTION) (\w+)", re.MULTILINE)


def read_path(path: str) -> list[str]:
    """Return the names of schemas in a value of search_path."""
    names = (quoted.replace('""', '"') or plain.lower() for quoted, plain in _PATH_ITEM.findall(path))
    return [name.encode()[:MAX_NAME_BYTES].decode(errors="ignore") for name in names if name]


def find_path_problem(path: str, url_path: str, schema: str, user: str) -> str:
    """Return why the schema of a connection is not the one that its search_path names first, "" if it is.

    The server uses the next one of `path` for a schema that does not exist. `url_path` is what the URL asks for.
    """
    names = read_path(path)
    if url_path and read_path(url_path) != names:
        return f"search_path={url_path} in the URL has no effect behind this pooler. Set it for the role instead."
    for name in names:
        is_optional = name.endswith("$user")  # Some providers write "\$user", which no user has.
        if (user if name == "$user" else name) == schema:
            return ""
        if not is_optional:
            return (
                f'schema "{name}" of search_path does not exist, or this user may not use it. '
                "Create it first, or name another one."
            )
    return "search_path names no schema that exists. Create one first, or name another one."


def created_names(version: int | None = None) -> tuple[list[str], list[str]]:
    """Return the names of the tables and sequences, and of the functions, of a version of the schema, or of all."""
    found = [
        match.groups()
        for number, sql in migrations("postgres")
        if version is None or number <= version
        for match in _CREATED.finditer(sql)
    ]
    functions = {name for kind, name in found if kind.endswith("FUNCTION")}
    return sorted({name for kind, name in found if not kind.endswith("FUNCTION")}), sorted(functions)
