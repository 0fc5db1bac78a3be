"""Fixtures of the tests with several servers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.support import engines
from tests.support.cluster import Cluster, running_cluster

_sessions = itertools.count(1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    home = tmp_path_factory.mktemp("machines")
    with engines.new_database(engines.POSTGRES) as database, running_cluster(database, home) as cluster:
        yield cluster


@pytest.fixture
def session() -> str:
    """Return the name of a session that no other test uses."""
    return f"s{next(_sessions)}"
