"""Tokens: the file of the main token, and the command that creates, lists and revokes the others."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import callslip
from callslip.cli import main
from callslip.client import token_file
from callslip.client.token_file import hash_token, main_token, mint_token
from callslip.errors import InvalidInputError, StoreError
from callslip.model import events as ev
from callslip.model.records import TokenRecord

# The main token


def file_mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_main_token_is_created_once(tmp_path: Path) -> None:
    """The first start creates it, readable only by its owner; later starts read it."""
    folder = tmp_path / "data" / "callslip"
    token = main_token(folder)
    assert len(token) >= 43 and main_token(folder) == token
    assert [path.name for path in folder.iterdir()] == ["token"]
    assert (file_mode(folder), file_mode(folder / "token")) == (0o700, 0o600)
    assert main_token(tmp_path / "another") != token


def test_a_configured_token_takes_precedence_and_is_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The option, then the variable, then the file; an empty value is ignored."""
    monkeypatch.setenv("CALLSLIP_TOKEN", "from-the-variable")
    assert main_token(tmp_path, "from-the-option-") == "from-the-option-"
    assert main_token(tmp_path) == "from-the-variable"
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("CALLSLIP_TOKEN", "")
    assert main_token(tmp_path) == (tmp_path / "token").read_text().strip()


@pytest.mark.parametrize(
    "token", [" ", "a b", "a;b", "a\r\nb", "b\u00e4r", "x" * 600, "\ud800", "=", "x", "only-15-letters"]
)
def test_an_unsendable_or_weak_token_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    """The error names the option and does not repeat the token."""
    with pytest.raises(InvalidInputError, match="--token") as refusal:
        main_token(tmp_path, token)
    assert len(str(refusal.value)) < 200
    monkeypatch.setattr(os, "environ", {"CALLSLIP_TOKEN": token})
    with pytest.raises(InvalidInputError, match="CALLSLIP_TOKEN"):
        main_token(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\n", b"two words\n", b"\xff\xfe", b"x" * 5000])
def test_a_token_file_without_a_token_raises_an_error(tmp_path: Path, content: bytes) -> None:
    """An empty token would match any request."""
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(StoreError, match="contains no token"):
        main_token(tmp_path)
    assert (tmp_path / "token").read_bytes() == content


def test_an_unusable_token_path_raises_an_error(tmp_path: Path) -> None:
    """A folder, a dangling link, or a file in place of the folder."""
    for number, create in enumerate(
        [
            lambda folder: (folder / "token").mkdir(parents=True),
            lambda folder: (folder.mkdir(), (folder / "token").symlink_to("nowhere")),
            lambda folder: folder.write_text("a file"),
        ]
    ):
        create(folder := tmp_path / str(number))
        with pytest.raises(StoreError, match="cannot be read or created"):
            main_token(folder)


def test_a_token_file_readable_by_other_users_gives_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The token still works, and the warning does not repeat it."""
    token = main_token(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert main_token(tmp_path) == token and not caplog.records
        (tmp_path / "token").chmod(0o644)
        assert main_token(tmp_path) == token
    assert "can be read by other users" in caplog.text and token not in caplog.text


def test_concurrent_first_starts_use_the_same_token(tmp_path: Path) -> None:
    """The second one uses the token of the first."""
    barrier, tokens = threading.Barrier(8), list[str]()

    def start() -> None:
        barrier.wait()
        tokens.append(main_token(tmp_path))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tokens) == 8 and len(set(tokens)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["token"]


def test_the_token_file_is_created_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is then renamed into place."""

    def refuse_link(*_: Any) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(token_file.os, "link", refuse_link)
    token = main_token(tmp_path)
    assert main_token(tmp_path) == token and file_mode(tmp_path / "token") == 0o600


def test_generated_tokens_are_unique(tmp_path: Path) -> None:
    """No hash equals a token."""
    tokens = {mint_token() for _ in range(100)}
    assert len(tokens) == 100 and not tokens & {hash_token(token) for token in tokens}


# The command


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set the ledger of the commands, and return its path."""
    monkeypatch.setenv("CALLSLIP_DB", str(tmp_path / "ledger.db"))
    return tmp_path / "ledger.db"


def run_cli(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["admin", "token", *arguments])


def read_tokens(path: Path) -> list[TokenRecord]:
    async def read() -> list[TokenRecord]:
        async with await callslip.open(f"sqlite:///{path}") as ledger:
            return await ledger.log.store.tokens()

    return asyncio.run(read())


def list_tokens() -> list[dict[str, Any]]:
    return [json.loads(line) for line in run_cli("ls", "--json").stdout.splitlines()]


def test_a_created_token_is_printed_once_and_stored_as_a_hash(path: Path) -> None:
    """stdout contains only the token; no file contains it."""
    result = run_cli("create", "--session", "S", "--can", "read,approve", "--label", "ci", "--expires", "30d")
    token = result.stdout.strip()
    assert result.exit_code == 0 and result.stdout == f"{token}\n" and token.startswith("callslip_")
    (row,) = read_tokens(path)
    assert (row.hash, row.session, row.verbs, row.label) == (hash_token(token), "S", ("read", "approve"), "ci")
    assert row.expires_at - row.created_at == 30 * 86_400_000
    assert token not in result.stderr and row.id in result.stderr and "session S does not exist yet" in result.stderr
    for file in path.parent.iterdir():
        assert token.encode() not in file.read_bytes()
    listing = run_cli("ls")
    assert row.id in listing.stdout and token not in listing.output and row.hash not in listing.output


def test_a_token_created_without_options_can_read_all_sessions(path: Path) -> None:
    """Without options the token is for every session, only for reading, and never expires."""
    created = json.loads(run_cli("create", "--json").stdout)
    (row,) = read_tokens(path)
    assert (row.session, row.verbs, row.label, row.expires_at) == ("", ("read",), "", 0)
    assert hash_token(created.pop("token")) == row.hash
    assert [created] == list_tokens() and created == {
        "id": row.id,
        "session": None,
        "can": ["read"],
        "label": "",
        "createdAt": row.created_at,
        "expiresAt": None,
    }


@pytest.mark.parametrize(
    ("options", "verbs"),
    [
        (["read,write,approve,execute"], ("read", "write", "approve", "execute")),
        (["write", "read"], ("read", "write")),
        (["execute, approve", "execute"], ("approve", "execute")),
    ],
)
def test_verbs_can_be_comma_separated_or_repeated(path: Path, options: list[str], verbs: tuple[str, ...]) -> None:
    """In any order, each once."""
    assert run_cli("create", *(word for option in options for word in ("--can", option))).exit_code == 0
    assert read_tokens(path)[0].verbs == verbs


@pytest.mark.parametrize(
    "arguments",
    [
        ("--can", "fly"),
        ("--can", ""),
        ("--can", "read,"),
        ("--can", "READ"),
        ("--session", ""),
        ("--session", "a/b"),
        ("--session", "x" * 300),
        ("--label", "a\nb"),
        ("--label", "x" * 600),
        ("--expires", "0"),
        ("--expires", "soon"),
        ("--expires", "-1d"),
        ("--expires", "99999999w"),
        ("--expires", "9" * 400),
    ],
)
def test_invalid_token_options_create_no_token(path: Path, arguments: tuple[str, ...]) -> None:
    """Status 2, a single line on stderr, and nothing on stdout."""
    result = run_cli("create", *arguments)
    assert (result.exit_code, result.stdout) == (2, "") and len(result.stderr.splitlines()) == 1
    assert not path.exists() or read_tokens(path) == []


def test_a_token_for_an_existing_session_gives_no_warning(path: Path) -> None:
    """Only for a full name: a prefix is another session that may be created later."""

    async def fill() -> None:
        async with await callslip.open(f"sqlite:///{path}") as ledger:
            await ledger.log.append("session-one", [ev.MessageUser(text="x")])

    asyncio.run(fill())
    assert "yet" not in run_cli("create", "--session", "session-one").stderr
    assert "session session does not exist yet" in run_cli("create", "--session", "session").stderr
    assert [row.session for row in read_tokens(path)] == ["session-one", "session"]


def test_a_token_is_revoked_by_its_id_or_prefix(path: Path) -> None:
    """A prefix must be unique; the token itself is not accepted as an id and not repeated."""
    tokens = [run_cli("create", "--label", label).stdout.strip() for label in ("one", "two")]
    one, two = read_tokens(path)
    ambiguous = run_cli("revoke", "tok_")
    assert ambiguous.exit_code == 2 and one.id in ambiguous.stderr and two.id in ambiguous.stderr
    wrong = run_cli("revoke", tokens[0])
    assert wrong.exit_code == 3 and tokens[0] not in wrong.output
    assert run_cli("revoke", one.id).exit_code == 0 and read_tokens(path) == [two]
    assert run_cli("revoke", one.id).exit_code == 3
    assert json.loads(run_cli("revoke", two.id[:10], "--json").stdout) == {"id": two.id, "revoked": True}
    assert read_tokens(path) == [] and list_tokens() == [] and "no tokens" in run_cli("ls").stderr


def test_listing_or_revoking_tokens_creates_no_ledger(path: Path) -> None:
    """Both commands give status 3."""
    assert run_cli("ls").exit_code == 3 and run_cli("revoke", "tok_1").exit_code == 3 and not path.exists()


def test_a_hostile_label_is_escaped(path: Path) -> None:
    """No control character reaches the terminal."""
    hostile = "a\u202eb"
    assert run_cli("create", "--label", hostile).exit_code == 0
    assert hostile not in run_cli("ls").stdout and hostile not in run_cli("revoke", read_tokens(path)[0].id).stderr
