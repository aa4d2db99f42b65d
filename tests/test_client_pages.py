"""The pages on MCP clients: their commands, run in order on a terminal, print the output that the pages show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import tool_search
from tests.shown_output import Machine, is_printed, steps
from tests.stage.guides import CTRL_C, Up, abacus

PAGES = Path(__file__).parents[1] / "docs" / "clients"
INDEX = PAGES / "index.md"
URL = "http://127.0.0.1:7000"
BEFORE = {
    "claude-desktop": (
        ".config/Claude/claude_desktop_config.json",
        '{\n  "mcpServers": {\n    "files": {\n      "command": "npx",\n'
        '      "args": ["-y", "@modelcontextprotocol/server-filesystem", "/tmp"]\n    }\n  }\n}\n',
    ),
    "vscode": (
        ".config/Code/User/mcp.json",
        '{\n  "servers": {\n    "tracker": {\n      "url": "https://tracker.example/mcp",\n'
        "    }, // of our team\n  },\n}\n",
    ),
}
"""The files that the clients of two pages have already."""

CALLED = {"gemini": "gemini-cli"}
"""Pages that have another name than their client."""

pytestmark = pytest.mark.covers("connect")


@pytest.fixture
def machine(machine: Machine) -> Machine:
    machine.put("../work/mcp.json", {"mcpServers": {"abacus": abacus()}})
    for name, text in BEFORE.values():
        machine.put(name, {})
        (machine.home / name).write_text(text, "utf-8")
    return machine


def is_shown(wanted: str, screen: str, url: str) -> bool:
    return is_printed(wanted, screen.replace(url, URL))


def commands(page: Path, pattern: str) -> list[tuple[str, str]]:
    """The commands of a page that are like this and whose output it shows."""
    return [(step.command, step.prints) for step in steps(page) if step.prints and re.match(pattern, step.command)]


async def test_up_says_how_an_mcp_client_is_connected(machine: Machine) -> None:
    ((command, prints),) = commands(INDEX, "a2c-smcp up")
    up = await Up.start(machine, command)
    said = await up.shows(lambda screen: "a2c-smcp connect claude-code" in screen.text and "laptop>" in screen.line)
    assert is_shown(prints, said, up.url), said
    ((command, prints),) = commands(INDEX, "a2c-smcp connect --print")
    said = await machine.runs(command, A2C_URL=up.url)
    assert is_shown(prints, said, up.url), said


@pytest.mark.parametrize("page", ["index", "frameworks"])
async def test_a_bridge_says_where_it_listens_and_which_key_it_wants(machine: Machine, page: str) -> None:
    up = await Up.start(machine, "a2c-smcp up --name laptop --yes")
    ((command, prints),) = commands(PAGES / f"{page}.md", r"a2c-smcp bridge .*--port 7100$")
    bridge = await machine.starts(command.replace("7100", "0"), A2C_URL=up.url)
    said = await bridge.shows("for example: claude mcp add")
    (url,) = re.findall(r"listening on (http://\S+)/mcp", said)
    assert is_printed(prints, said.replace(url, "http://127.0.0.1:7100")), said
    bridge.types(CTRL_C)
    assert await bridge.ends() == 0


@pytest.mark.parametrize("name", ["claude-desktop", "claude-code", "cursor", "vscode", "codex", "gemini", "opencode"])
async def test_a_page_shows_what_connect_prints(machine: Machine, name: str) -> None:
    page = PAGES / f"{CALLED.get(name, name)}.md"
    up = await Up.start(machine, "a2c-smcp up --name laptop --yes")
    shown = commands(page, "a2c-smcp connect")
    assert {command.split()[2] for command, _ in shown} == {name}
    for command, prints in shown:
        said = await machine.runs(command, A2C_URL=up.url)
        assert is_shown(prints, said, up.url), said
    for file, text in BEFORE.values():
        assert (machine.home / file).read_text("utf-8") == text


def test_the_page_on_many_tools_has_the_numbers_that_are_measured() -> None:
    page, search = (PAGES / "many-tools.md").read_text("utf-8"), tool_search.built(0)
    assert f"| {tool_search.tokens(tool_search.built(None).listings()):,} |" in page
    assert f"| {tool_search.tokens(search.listings()):,} |" in page
    for kind, words in tool_search.KINDS.items():
        row = tool_search.successes(search, kind, show_missed=False)
        assert f"| {words} | {row['queries']} | {row['first']:.0f} % | {row['among 5']:.0f} % |" in page, row


def test_the_page_on_frameworks_shows_the_examples() -> None:
    page = (PAGES / "frameworks.md").read_text("utf-8")
    for example in sorted((PAGES.parents[1] / "examples" / "bridge").glob("with_*.py")):
        _, _, code = example.read_text("utf-8").partition("from __future__ import annotations\n\n")
        assert f"```py\n{code}```" in page, example.name
