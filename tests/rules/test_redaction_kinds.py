"""Test which kinds of text are secrets: names, headers, URLs, private keys, tokens of Callslip, and places in JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import callslip
from callslip.client.token_file import main_token
from callslip.ingest.importer import import_lines
from callslip.rules.redaction import Redactor
from tests.support import cli_process

REDACTOR = Redactor()
VALUE = "q8" + "Zt4" * 6
"""A value that no pattern would find without the name before it."""
PEM_LINE = "MIIEvQIBADANBgkq+/" * 3

SECRETS = {
    f"OPENAI_API_KEY={VALUE}": "OPENAI_API_KEY=[redacted:secret]",
    f"export CALLSLIP_TOKEN={VALUE}; ls": "export CALLSLIP_TOKEN=[redacted:secret] ls",
    f'STRIPE_KEY="{VALUE}" run': 'STRIPE_KEY="[redacted:secret]" run',
    f"MY_KEY='{VALUE}'": "MY_KEY='[redacted:secret]'",
    f'{{"cmd": "MY_KEY=\\"{VALUE}\\" x"}}': '{"cmd": "MY_KEY=\\"[redacted:secret]\\" x"}',
    f'{{"env": {{"MY_TOKEN": "{VALUE}"}}}}': '{"env": {"MY_TOKEN": "[redacted:secret]"}}',
    "API_KEY=ab12cd34": "API_KEY=[redacted:secret]",
    "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYzzz": "AWS_SECRET_ACCESS_KEY=[redacted:secret]",
    "BOT_TOKEN=110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw": "BOT_TOKEN=[redacted:secret]",
    "BOT_TOKEN=MTk4NjIyNDgzNDcxOTI1MjQ4.Cl2FMQ.ZnCjm1XVW7vRz x": "BOT_TOKEN=[redacted:secret] x",
    "PASSWORD=hunter2": "PASSWORD=[redacted:secret]",
    "PGPASSWORD=hunter2 psql": "PGPASSWORD=[redacted:secret] psql",
    'DB_PASSWORD="correct horse, battery" next': 'DB_PASSWORD="[redacted:secret]" next',
    "JWT_SECRET=averylongsecret\nA=1": "JWT_SECRET=[redacted:secret]\nA=1",
    f"x-api-key: {VALUE}\nhost: h": "x-api-key: [redacted:secret]\nhost: h",
    f'curl -H "X-API-Key: {VALUE}" url': 'curl -H "X-API-Key: [redacted:secret]" url',
    f'{{"x-api-key": "{VALUE}"}}': '{"x-api-key": "[redacted:secret]"}',
    f"{{'X-Api-Key': '{VALUE}'}}": "{'X-Api-Key': '[redacted:secret]'}",
    "postgres://bob:s3cr3t@db:5432/app": "postgres://[redacted:url]@db:5432/app",
    "git clone https://bob:tok%40en@host/r.git": "git clone https://[redacted:url]@host/r.git",
    "redis://:s3cr3t@cache": "redis://[redacted:url]@cache",
    "postgresql+asyncpg://u:a:b@h": "postgresql+asyncpg://[redacted:url]@h",
    f"authorization: bearer {VALUE}": "[redacted:bearer]",
    f'{{"Authorization": "bearer {VALUE}"}}': '{"Authorization": "bearer [redacted:bearer]"}',
    f"-H 'Authorization: Bearer {VALUE}'": "-H 'Authorization: [redacted:bearer]'",
    f"callslip_{VALUE}{VALUE}abc.": "[redacted:callslip].",
}

ORDINARY = [
    "the standard bearer MarchedThrough1812Rain",
    "The ring bearer CarriedItFor17YearsInAll",
    'api_key = os.environ["X"]',
    'API_KEY = os.environ["OPENAI_API_KEY"]',
    'API_KEY=os.environ["OPENAI_API_KEY"]',
    "OPENAI_API_KEY=$OPENAI_API_KEY run",
    'OPENAI_API_KEY="${OPENAI_API_KEY:-}"',
    "TOKEN=$(gh auth token)",
    "TOKEN=`gh auth token`",
    "TOKEN=<your token> API_KEY=<key>",
    "PASSWORD= NEXT=1",
    "PASSWORD=\"\" TOKEN=''",
    "PASSWORD=$DB_PASSWORD PASSWORD=${DB_PASSWORD} PASSWORD=*******",
    "MYSQL_ALLOW_EMPTY_PASSWORD=yes PASSWORD=none",
    "SORT_KEY=name PRIMARY_KEY=id CACHE_KEY=users:list KEY=value",
    "PARTITION_KEY=organization-and-department",
    "DEFAULT_SECRET_KEY=settings.SECRET_KEY",
    "sorted(rows, key=lambda row: row.created_at) dict(token=token, password=password)",
    "for key, value in items: KEYS = 12; MONKEY=abcdefgh12345678",
    "https://example.com/?key=&token=&q=1#key=value",
    "see https://docs.python.org/3/library/re.html and http://localhost:8080/@vite/client",
    "https://host:8443/a@b ssh://git@github.com/x/y.git git@github.com:x/y.git mailto:a@b.c",
    "postgres://$USER:$PASSWORD@host postgres://{user}:{password}@{host} http://<user>:<password>@host",
    "https://user:***@host // TODO(bob): mail a@b.c //",
    "x-api-key: $ANTHROPIC_API_KEY x-api-key: <key> x-api-key: {key}",
    "-----BEGIN CERTIFICATE-----\n" + PEM_LINE + "\n-----END CERTIFICATE-----",
    "-----BEGIN PUBLIC KEY-----\n" + PEM_LINE + "\n-----END PUBLIC KEY-----",
    "callslip_ledger_path callslip_submit_command_and_wait_for_its_result_in_a_worker",
    '{"KEY": "value", "TOKEN": "", "max_tokens": 100, "next_token": "abc", "PASSWORD": null}',
    "if (KEY == 13 && TOKEN != null) { PASSWORD = prompt(); }",
]


@pytest.mark.parametrize("text", SECRETS)
def test_a_secret_is_found(text: str) -> None:
    """What is left names the secret but has nothing of it."""
    assert REDACTOR.text(text) == SECRETS[text]
    assert REDACTOR.text(SECRETS[text]) == SECRETS[text]


@pytest.mark.parametrize("text", SECRETS)
def test_a_secret_is_found_in_any_two_chunks(text: str) -> None:
    """The split may be anywhere, and nothing of the secret is released before it is recognized."""
    for at in range(len(text) + 1):
        first, carry = REDACTOR.feed("", text[:at])
        second, carry = REDACTOR.feed(carry, text[at:], first[-2:])
        assert first + second + REDACTOR.flush(carry) == SECRETS[text]


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_is_unchanged(text: str) -> None:
    """Variables without a value, references to other variables, code, addresses and public keys are not secrets."""
    assert REDACTOR.text(text) is text


def test_source_code_is_unchanged() -> None:
    """The code of Callslip itself has many keys and tokens, but no secret."""
    for path in Path(callslip.__file__).parent.rglob("*.py"):
        text = path.read_text("utf-8")
        assert REDACTOR.text(text) is text, path


@pytest.mark.parametrize("kind", ["", "RSA ", "EC ", "DSA ", "OPENSSH ", "ENCRYPTED ", "ANY "])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\\n"])
def test_private_keys_of_every_kind_are_found(kind: str, newline: str) -> None:
    """The body is replaced, and the end stays."""
    end = f"-----END {kind}PRIVATE KEY-----"
    text = newline.join([f"-----BEGIN {kind}PRIVATE KEY-----", PEM_LINE, PEM_LINE, end])
    assert REDACTOR.text(text) == f"-----[redacted:private-key]{end}"


@pytest.mark.parametrize("cipher", ["AES-128-CBC", "AES-192-CBC", "AES-256-CBC", "DES-EDE3-CBC", "DES-CBC"])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\\n"])
def test_private_keys_with_a_password_are_found(cipher: str, newline: str) -> None:
    """Their header lines do not hide the body."""
    head = ["-----BEGIN RSA PRIVATE KEY-----", "Proc-Type: 4,ENCRYPTED", f"DEK-Info: {cipher},3F17F5316E2BAC89"]
    redacted = REDACTOR.text(newline.join([*head, "", PEM_LINE, PEM_LINE, "-----END RSA PRIVATE KEY-----"]))
    assert "[redacted:private-key]-----END RSA PRIVATE KEY-----" in redacted and PEM_LINE not in redacted


@pytest.mark.parametrize("head", ["", "Version: GnuPG v2.0.14 (GNU/Linux)\nComment: https://gnupg.org\n"])
def test_pgp_private_keys_are_found(head: str) -> None:
    """With and without header lines."""
    text = f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n{head}\n{PEM_LINE}\n=aB3d\n-----END PGP PRIVATE KEY BLOCK-----"
    assert REDACTOR.text(text) == "-----[redacted:private-key]-----END PGP PRIVATE KEY BLOCK-----"


def acp_servers() -> list[dict[str, Any]]:
    """Return MCP servers as ACP lists them: one that is a process, and one that is reached over HTTP."""
    return [
        {"name": "a", "command": "run", "args": ["x"], "env": [{"name": "PLAIN", "value": "short"}]},
        {"type": "http", "name": "b", "url": "https://h", "headers": [{"name": "X-Any", "value": "short"}]},
    ]


def test_the_environment_and_headers_of_mcp_servers_are_secrets() -> None:
    """By their position: the values need not look like secrets. Names and all else stay."""
    redacted = REDACTOR.value({"params": {"cwd": "/x", "mcpServers": acp_servers()}})["params"]
    assert redacted["cwd"] == "/x"
    process, remote = redacted["mcpServers"]
    assert process == {**acp_servers()[0], "env": [{"name": "PLAIN", "value": "[redacted:env]"}]}
    assert remote == {**acp_servers()[1], "headers": [{"name": "X-Any", "value": "[redacted:header]"}]}
    file = {"mcpServers": {"a": {"command": "run", "env": {"PLAIN": "short"}}, "b": {"headers": {"X": "short"}}}}
    assert REDACTOR.value(file) == {
        "mcpServers": {
            "a": {"command": "run", "env": {"PLAIN": "[redacted:env]"}},
            "b": {"headers": {"X": "[redacted:header]"}},
        }
    }


@pytest.mark.parametrize("servers", [None, "text", 5, [None, 5, "x"], [{"env": 5, "headers": None}], {"a": []}])
def test_other_values_of_mcp_servers_are_kept(servers: Any) -> None:
    """Values of another type are unchanged."""
    assert REDACTOR.value({"mcpServers": servers}) == {"mcpServers": servers}


def test_members_are_found_by_their_names() -> None:
    """An object is redacted as its JSON text is."""
    value = {"headers": {"X-API-Key": VALUE, "Authorization": "Basic dXNlcjpwYXNz"}, "env": {"MY_TOKEN": VALUE}}
    assert REDACTOR.value(value) == {
        "headers": {"X-API-Key": "[redacted:secret]", "Authorization": "[redacted:basic]"},
        "env": {"MY_TOKEN": "[redacted:secret]"},
    }
    plain = {"SORT_KEY": "name", "authorization": "none", "api-key": "", "TOKEN": "$TOKEN"}
    assert REDACTOR.value(plain) is plain


def test_secrets_found_by_position_are_restored() -> None:
    """A person who edits other arguments of a call does not change what they saw redacted."""
    before = {"cwd": "/x", "mcpServers": acp_servers(), "env": {"MY_TOKEN": VALUE}}
    edited = {**REDACTOR.value(before), "cwd": "/y"}
    assert REDACTOR.restore_secrets(edited, before) == {**before, "cwd": "/y"}


@pytest.mark.anyio
async def test_recorded_acp_traffic_has_no_environment_of_mcp_servers(tmp_path: Path) -> None:
    """The request that opens a session is stored, and its secrets are not in the file."""
    request = {"cwd": "/work", "mcpServers": acp_servers()}
    request["mcpServers"][0]["env"][0]["value"] = "unlikely-position-one"
    request["mcpServers"][1]["headers"][0]["value"] = "unlikely-position-two"
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "session/new", "params": request})
    path = tmp_path / "ledger.db"
    async with await callslip.open(f"sqlite:///{path}") as ledger:
        await import_lines(ledger.log, "a", "acp", [line.encode()])
    data = b"".join(file.read_bytes() for file in tmp_path.glob("ledger.db*"))
    assert b"session/new" in data and b"[redacted:env]" in data and b"[redacted:header]" in data
    assert b"unlikely-position" not in data


def test_all_tokens_of_callslip_are_found(tmp_path: Path) -> None:
    """The main token of a new installation and those of `admin token create` have the same prefix."""
    db = str(tmp_path / "ledger.db")
    created = cli_process.run_in_process("admin", "token", "create", "--can", "read", "--db", db).stdout.split()
    tokens = [main_token(tmp_path), next(word for word in created if word.startswith("callslip_"))]
    for token in tokens:
        assert token.startswith("callslip_") and REDACTOR.text(f"use {token}") == "use [redacted:callslip]"


def test_the_time_grows_linearly() -> None:
    """Texts of a million characters that begin many secrets and complete none; more than linear growth takes hours."""
    for part in ("KEY=", "KEY=a", 'API_KEY="', "//a:", "//a:b", "x-api-key: ", "PASSWORD=(", "https://a:bb@", "=\\"):
        text = (part * 1_000_000)[:1_000_000]
        assert len(REDACTOR.text(text)) <= len(text) * 5
