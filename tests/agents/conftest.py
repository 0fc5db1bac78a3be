"""An agent of each vendor, and the model server that it uses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.real_agents import AGENTS, RealAgent
from tests.support.scripted_models import ScriptedModels


@pytest.fixture
def models() -> Iterator[ScriptedModels]:
    with ScriptedModels({}).running() as server:
        yield server


@pytest.fixture(params=AGENTS, ids=[agent.name for agent in AGENTS])
def agent(request: pytest.FixtureRequest, models: ScriptedModels, tmp_path: Path) -> Iterator[RealAgent]:
    with contextlib.closing(request.param(tmp_path / "agent", models)) as started:
        yield started
