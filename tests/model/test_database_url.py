"""The URL of a database is shown without its password, in every form of URL."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callslip.model.database_url import has_valid_hosts, is_server_url, mask_password

SECRET = "S3cr3t"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:S3cr3t@db:5432/app", "postgresql://ann:***@db:5432/app"),
        ("postgres://:S3cr3t@db/app", "postgres://:***@db/app"),
        (
            "postgresql://ann:S3cr3t@one:1,two:2/app?sslmode=require",
            "postgresql://ann:***@one:1,two:2/app?sslmode=require",
        ),
        ("postgresql://ann:@db/app", "postgresql://ann:***@db/app"),
        ("postgresql://db/app?user=ann&password=S3cr3t&x=1", "postgresql://db/app?user=ann&password=***&x=1"),
        ("postgresql://db/app?pass%77ord=S3cr3t", "postgresql://db/app?pass%77ord=***"),
        ("postgresql:///app?host=/run&PASSWORD=S3cr3t#x", "postgresql:///app?host=/run&PASSWORD=***"),
        ("postgresql://db/app?sslpassword=S3cr3t", "postgresql://db/app?sslpassword=***"),
        ("mysql://ann:S3cr3t@db/app", "mysql://ann:***@db/app"),
    ],
)
def test_a_password_is_masked(url: str, shown: str) -> None:
    """DB2: the rest of the URL stays, so that a person can tell which database it is."""
    assert mask_password(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://db:5432/app",
        "postgresql://ann@db/app",
        "postgresql:///app?host=/run/postgresql",
        "sqlite:///home/a:b@c.db",
        "/home/a:b@c.db?password=x",
        "",
    ],
)
def test_a_name_without_a_password_is_not_changed(url: str) -> None:
    """Paths of files, and URLs that name only the user or the host."""
    assert mask_password(url) == url


@given(st.text(alphabet="ab:@/?#&=%[],. ", max_size=6), st.text(alphabet="ab:@/?#&=%[],. ", max_size=6))
def test_no_part_of_an_unescaped_password_is_shown(before: str, after: str) -> None:
    """DB2: a password with any special characters is masked completely."""
    password = f"{before}{SECRET}{after}"
    assert SECRET not in mask_password(f"postgresql://ann:{password}@db:5432/app?sslmode=require")


def test_only_urls_of_servers_name_a_server() -> None:
    """Every other text is a file or is refused."""
    assert is_server_url("postgresql://db/app") and is_server_url("postgres:///app")
    for text in ("postgresql:app", "postgresql+asyncpg://db/app", "sqlite:///postgresql://x", "postgres", ""):
        assert not is_server_url(text)


@pytest.mark.parametrize(
    "url",
    ["postgresql:///app", "postgresql://db", "postgresql://a:b@[::1]:5432,two/app", "postgresql://ann:p%2Fw@db:1/app"],
)
def test_hosts_with_and_without_ports_are_valid(url: str) -> None:
    """Also several hosts, and addresses in brackets."""
    assert has_valid_hosts(url)


@pytest.mark.parametrize("password", ["S3/cr3t", "S3?cr3t", "S3#cr3t"])
def test_a_password_that_ends_the_address_is_found(password: str) -> None:
    """A driver would take the rest of the password for a port and show it in an error."""
    assert not has_valid_hosts(f"postgresql://ann:{password}@db/app")
