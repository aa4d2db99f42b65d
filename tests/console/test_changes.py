"""MCP servers that an owner adds, updates and removes in the console, from an index on this machine."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.configuration.files import loads, read_configuration
from a2c_smcp.computer.configuration.watch import ConfigurationChanges
from a2c_smcp.computer.consent.approval import OWNER, PendingApprovals, PendingQuestions
from a2c_smcp.console.owner.console import OwnerConsole
from a2c_smcp.console.owner.state import OwnerState
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.mcp_host.processes.plan import possible
from tests.console.browserless import Answered, Visitor
from tests.stage.cases import cases
from tests.stage.registries import Registries, registries
from tests.waiting import until, until_it_goes

pytestmark = [
    pytest.mark.covers("add"),
    pytest.mark.skipif(not possible().ports, reason="this kernel's Landlock has no TCP ports"),
]
LINE = "uvx clock-server --zone UTC"
WRITTEN = """{
  // mine
  "servers": {
    "first": {"command": "x", "disabled": true}, // keep
  },
}
"""


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Registries]:
    with registries() as served:
        for name, value in {**served.environ, "XDG_DATA_HOME": str(tmp_path / "data")}.items():
            monkeypatch.setenv(name, value)
        served.pypi("clock-server", "1.0.0")
        yield served


class Changed:
    """A running computer whose file is watched, the console of its owner, and a browser in it."""

    def __init__(self, computer: Computer, file: Path, watched: list[Path]) -> None:
        self.computer, self.file = computer, file
        self.asked: list[Sequence[object]] = []
        self.faults: list[str] = []
        known = read_configuration(file)
        self.files = ConfigurationChanges(computer, watched, known, self.faults.append, self.consent, None)
        approvals = PendingApprovals()
        self.state = OwnerState(
            computer, approvals, PendingQuestions(approvals.numbers, approvals.first_added), self.files
        )
        self.console = OwnerConsole(self.state, "http://127.0.0.1:7200", print)
        self.visitor = Visitor(self.console.app)

    async def consent(self, lines: Sequence[object]) -> bool:
        self.asked.append(lines)
        return False

    async def page(self, path: str = "/change") -> str:
        return html.unescape((await self.visitor.get(path)).body)

    async def shows(self, *texts: str) -> str:
        """The page as soon as it has one of these texts."""

        async def shown() -> str:
            page = await self.page()
            assert any(text in page for text in texts), page
            return page

        return str(await until_it_goes(shown))

    async def add(self, name: str = "clock", start: str = LINE, **more: str) -> Answered:
        return await self.visitor.act("/change/add", name=name, start=start, **more)

    async def say(self, answer: str) -> Answered:
        question = re.findall(r'name="question" value="(\d+)"', await self.page())[-1]
        return await self.visitor.act("/change/answer", question=question, answer=answer)

    async def added(self) -> None:
        assert (await self.add()).status == 204
        await self.shows("Install it, and add it to a2c.json?")
        assert (await self.say("yes")).status == 204
        await self.shows("added clock to")
        await until(lambda: self.computer.status()["clock"].state == "ready")


@pytest.fixture
async def changed(tmp_path: Path, index: Registries) -> AsyncIterator[Changed]:
    file = tmp_path / "a2c.json"
    file.write_text(WRITTEN)
    async with Computer("laptop", approve=lambda request: True) as computer:
        made = Changed(computer, file, [file])
        for server in made.files.servers.values():
            await computer.put_server(server)
        await made.visitor.open(made.console.link())
        watching = asyncio.create_task(made.files.watch(interval=0.02))
        yield made
        await cancel_and_wait(watching)
        await made.state.tasks.close()


def left(tmp_path: Path) -> list[str]:
    """What is in the folder of installed servers."""
    folder = tmp_path / "data/a2c-smcp/servers"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


async def test_a_server_is_shown_added_updated_and_removed_without_another_consent(
    changed: Changed, index: Registries
) -> None:
    await changed.added()
    page = await changed.page()
    for fact in (
        "clock-server 1.0.0, from PyPI",
        "Ann (as the package says)",
        "none (443 would allow HTTPS)",
        "tools: 4",
    ):
        assert fact in page
    assert changed.file.read_text().startswith(WRITTEN.partition("// keep")[0] + "// keep")
    assert loads(changed.file.read_text())["servers"]["clock"]["args"][1:] == ["--zone", "UTC"]
    assert "UTC" in str(await changed.computer.execute_tool(OWNER, "1", "words", {}, 30))
    assert "Update clock" in await changed.page("/servers")
    index.pypi("clock-server", "2.0.0", tools=("words", "late"), by="Bob")
    await changed.visitor.act("/change/update", server="clock")
    assert "Ann (as the package says) → Bob" in await changed.shows("Install it?")
    await changed.say("yes")
    assert "new tools: late" in await changed.shows("Its tools change. Use it?")
    await changed.say("yes")
    await changed.shows("updated clock to clock-server 2.0.0")
    await until(lambda: "late" in [tool["name"] for tool in changed.computer.get_tools()])
    await changed.visitor.act("/change/remove", server="clock")
    await changed.shows("Remove clock?")
    await changed.say("yes")
    await changed.shows("removed clock from")
    await until(lambda: "clock" not in changed.computer.status())
    assert changed.file.read_text() == WRITTEN
    assert (changed.asked, changed.faults) == ([], [])


async def test_what_another_program_writes_meanwhile_is_still_asked_about(changed: Changed) -> None:
    changed.file.write_text(WRITTEN.replace("true", "false"))
    await until(lambda: changed.asked)
    await changed.added()
    await until(lambda: len(changed.asked) > 1)
    assert all("first" in str(line) for lines in changed.asked for line in lines)
    assert changed.computer.status()["first"].state == "disabled"


@pytest.mark.parametrize("answer", ["no", "stop"])
async def test_a_no_and_giving_up_leave_nothing(changed: Changed, tmp_path: Path, answer: str) -> None:
    await changed.add()
    await changed.shows("Install it, and add it to a2c.json?")
    assert (await changed.say("no") if answer == "no" else await changed.visitor.act("/change/stop")).status == 204
    await changed.shows("Nothing was added", "It was given up")
    assert changed.file.read_text() == WRITTEN
    assert not left(tmp_path)


@cases(
    "form, said",
    ({"start": "docker run y"}, "docker is not npx or uvx"),
    ({"start": "uvx git+https://h/y"}, "is not the name of a package of PyPI"),
    ({"start": "https://u:p@h/mcp"}, "has a user or a password"),
    ({"name": "first"}, "has an MCP server 'first' already"),
    ({"start": "uvx clock-server", "network": "h:443"}, "does not tell hosts apart"),
    ({"read": "/no/where"}, "/no/where does not exist"),
    ({"env": "TOKEN"}, "not NAME=VALUE"),
    ({"start": "uvx mcp-server-tyme"}, "Did you mean 'mcp-server-time'?"),
)
async def test_a_wrong_form_says_why_and_changes_nothing(
    changed: Changed, tmp_path: Path, form: dict[str, str], said: str
) -> None:
    assert (await changed.add(**{"name": "x", **form})).status == 204
    await changed.shows(said)
    assert changed.file.read_text() == WRITTEN
    assert not left(tmp_path)


async def test_a_second_change_and_a_late_answer_are_refused(changed: Changed) -> None:
    await changed.add()
    await changed.shows("Install it, and add it to a2c.json?")
    assert (await changed.add("other")).status == 400
    question = re.findall(r'name="question" value="(\d+)"', await changed.page())[-1]
    await changed.visitor.act("/change/stop")
    await changed.shows("It was given up")
    late = await changed.visitor.act("/change/answer", question=question, answer="yes")
    assert late.status == 409
    assert (await changed.add("", "uvx x")).status == 400
    await changed.add("other")
    await changed.shows('name="question"')
    assert (await changed.visitor.act("/change/answer", question=question, answer="yes")).status == 409
    await changed.say("no")
    assert (await changed.add("x", "uvx 'x")).status == 400


async def test_only_the_owner_changes_servers(changed: Changed) -> None:
    stranger = Visitor(changed.console.app)
    assert (await stranger.act("/change/add", name="x", start=LINE)).status == 401
    assert (await changed.visitor.post("/change/add", {"name": "x", "start": LINE}, origin="http://h")).status == 400


async def test_a_value_of_its_environment_is_not_shown(changed: Changed) -> None:
    await changed.add(start="uvx clock-server --api-key hunter2222", env="API_TOKEN=hunter5555")
    page = await changed.shows("Install it, and add it to a2c.json?")
    assert "hunter" not in page
    await changed.say("no")
    assert "hunter" not in await changed.shows("Nothing was added")


async def test_without_a_file_that_can_be_edited_the_page_says_so(changed: Changed, tmp_path: Path) -> None:
    toml = tmp_path / "a2c.toml"
    toml.write_text("")
    for watched in ([], [toml]):
        other = Changed(changed.computer, changed.file, watched)
        await other.visitor.open(other.console.link())
        assert "without a file of MCP servers in JSON" in await other.page()
        assert (await other.add()).status == 400
