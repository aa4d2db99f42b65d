"""The quick start: its commands, run in order on a terminal, print the output that the page shows."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from a2c_smcp import __version__
from tests.shown_output import Machine, Step, is_printed, steps

PAGES = [Path(__file__).parents[1] / "docs" / name for name in ("quick-start.md", "zh/quick-start.md")]
ABACUS = {"command": sys.executable, "args": ["-m", "a2c_smcp.cli.demo.mcp_servers", "abacus"]}
CONFIGURATION = {"mcpServers": {"abacus": {**ABACUS, "env": {"ABACUS_TOKEN": "tk-4bdc7306eb0e4a5b7a7c"}}}}
NEXT = re.compile(r"^  (a2c-smcp agent call .*?) *$", re.MULTILINE)
ENTER, CTRL_C = "\r", "\x03"


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    async with AsyncExitStack() as stack:
        machine = Machine(tmp_path, stack)
        machine.put(".config/Claude/claude_desktop_config.json", CONFIGURATION)
        yield machine


def step(words: str) -> Step:
    (found,) = (each for each in steps(PAGES[0]) if re.search(words, each.command))
    return found


@pytest.mark.parametrize("page", PAGES, ids=["English", "Chinese"])
def test_under_every_command_stands_what_it_prints(page: Path) -> None:
    assert [each.command for each in steps(page) if not each.prints] == []
    assert len([*steps(page)]) >= 10
    assert f"a2c-smcp-{__version__} " in step("pip install").prints


async def test_it_leads_to_a_tool_that_was_called(machine: Machine) -> None:
    take_over, up = step("import claude-desktop"), step("a2c-smcp up")
    said = await machine.runs(take_over.command, typed=ENTER)
    assert is_printed(take_over.prints, said), said
    running = await machine.starts(f"exec {up.command} --port 0")
    await running.shows("\nlaptop>")
    said = await running.shows(lambda screen: NEXT.search(screen.text))
    url = re.findall(r"http://127\.0\.0\.1:\d+", said)[0]
    assert is_printed(up.prints, said.replace(url, "http://127.0.0.1:7000")), said
    line, call = NEXT.findall(said)[0], step("agent call")
    assert line.replace(url, "http://127.0.0.1:7000") == call.command
    for command, prints in ((line, call.prints), step("agent tools"), step("doctor")):
        said = await machine.runs(command, A2C_URL=url)  # not 7000, which may be in use here
        assert is_printed(prints, said), said
    running.types(CTRL_C)
    assert await running.ends() == 0


@pytest.mark.parametrize(("words", "options"), [("import cursor", ""), ("demo", " --fast"), ("key", "")])
async def test_its_other_commands_print_what_it_says(machine: Machine, words: str, options: str) -> None:
    machine.put(".cursor/mcp.json", CONFIGURATION)
    wanted = step(f"^a2c-smcp {words}")
    said = await machine.runs(wanted.command + options)
    assert is_printed(wanted.prints, said), said


def test_what_is_not_printed_is_noticed() -> None:
    """Tests the comparison."""
    screen = "one  two\nthree 3.5 s\n\nlast\n"
    assert is_printed("one two\nthree … s\n…\nlast\n", screen)
    assert not is_printed("one two\nlast\n", screen)
    assert not is_printed("three … ms\n", screen)
    assert not is_printed("tw\n", screen)


def test_the_chinese_page_has_the_same_commands_and_output() -> None:
    english, chinese = ([*steps(page)] for page in PAGES)
    assert english == chinese
