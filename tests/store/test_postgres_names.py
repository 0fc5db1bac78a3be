"""How a database on a server is named in messages."""

from __future__ import annotations

import pytest

from callslip.settings import Settings
from callslip.store.postgres_database import Database


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("postgresql://ann:S3cr3t@db.example/app", "postgresql://ann:***@db.example/app"),
        ("postgresql://ann@db.example/app?password=S3cr3t", "postgresql://ann@db.example/app?password=***"),
    ],
)
def test_the_name_of_a_database_has_no_password(url: str, name: str) -> None:
    """DB2: neither before the host nor in the parameters."""
    assert Database(url, Settings()).name == name
