"""The story of the demo: one turn with every end state of a call and every kind of entry."""

from __future__ import annotations

import contextlib
from importlib import metadata
from pathlib import Path

from callslip.api.session import Session
from callslip.demo.agent import DemoAgent, run_parallel
from callslip.demo.project import FIXED_PARSER, PARSER
from callslip.demo.workers import Workers
from callslip.errors import CallslipError

TITLE = "Demo agent"
PROMPT = "Fix the failing test and deploy to staging."
TEST = "python3 -m tests.test_parser"
HEALTH_TIMEOUT_S = 2.0
LOST_TIMEOUT_S = 10.0


class Story(DemoAgent):
    """One run of the story, in a turn that is already open."""

    steps = ("Inspect the project", "Run the tests", "Fix the bug", "Check the staging host", "Deploy")

    def __init__(
        self,
        session: Session,
        folder: Path,
        workers: Workers,
        pace: float = 1.0,
        *,
        color: bool = True,
        closing: str = "",
    ) -> None:
        super().__init__(session, folder, pace, color=color)
        self._workers = workers
        self._closing = closing

    async def play(self) -> None:
        """Play all acts, and end with the result of the deploy and the `closing` text."""
        await self.think("I list the files twice at the same moment: two identical calls, each with its own ID.")
        await self._inspect()
        for act in (self._test, self._fix, self._check_host):
            await act()
            await self.pause(0.4)
        await self.say(await self._deploy() + self._closing)

    async def _inspect(self) -> None:
        await self.plan(0)
        await self.say("I'll look at the project first.")
        await run_parallel(*(self.run("ls") for _ in range(2)))
        await self.pause(0.5)

    async def _test(self) -> None:
        await self.plan(1)
        await self.say("I'll run the tests, a linter and a dependency lookup in parallel.")
        await run_parallel(self.run(TEST), self.run("python3 -m tabnanny -v app"), self._look_up("msgspec"))

    async def _look_up(self, package: str) -> None:
        arguments = {"package": package}
        async with self.session.call("package_info", arguments, title=f"Look up {package}", kind="search") as call:
            await self.pause(0.8)
            about = metadata.metadata(package)
            call.complete({**arguments, "installed": about["Version"], "requiresPython": about["Requires-Python"]})

    async def _fix(self) -> None:
        """Edit the parser, record the change as a diff, and test again."""
        await self.plan(2)
        await self.say("One test fails: the parser counts 360 seconds for an hour.")
        path = "app/parser.py"
        arguments = {"path": path, "old": "360", "new": "3600"}
        async with self.session.call("edit", arguments, title=f"Edit {path}", kind="edit") as call:
            await self.pause(0.5)
            (self.folder / path).write_text(FIXED_PARSER, "utf-8")
            diff = {"type": "diff", "path": path, "oldText": PARSER, "newText": FIXED_PARSER}
            await call.progress(content=[diff], locations=[{"path": str(self.folder / path), "line": 3}])
            call.complete("1 line changed")
        await self.run(TEST)

    async def _check_host(self) -> None:
        await self.plan(3)
        await self.say("The tests pass. The log of the staging host is long, so its full text is stored separately.")
        await self.run("sh deploy.sh log", stream=False)
        await self.pause(0.3)
        await self.say("I'll check the host while another process builds the package.")
        await run_parallel(self.run("sh deploy.sh health", timeout=HEALTH_TIMEOUT_S), self._lose_build())

    async def _lose_build(self) -> None:
        """Start a build in a worker process, and kill the process."""
        with contextlib.suppress(CallslipError):  # The call was cancelled, or the demo was stopped.
            call = await self._workers.start(self.session.name)
            await self.pause(1.2)
            await self._workers.kill(call)
            await self.session.ledger.wait(call, timeout=LOST_TIMEOUT_S)

    async def _deploy(self) -> str:
        """Deploy after approval, and return the result in a sentence. An expired approval is a denial."""
        await self.plan(4)
        await self.say("The check timed out and the build worker was killed. Approve the deploy, or deny it.")
        result = await self.run("sh deploy.sh staging", approval=True)
        is_deployed = result is not None and result.exit_status == 0
        await (self.plan(5) if is_deployed else self.plan(4, "cancelled"))
        if result is None:
            return "Deploy cancelled."
        if not is_deployed:
            return f"Deploy failed with exit status {result.exit_status}."
        return "The test is fixed and the app is deployed to staging."
