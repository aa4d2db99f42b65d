"""The quick start: its commands, run in order on a terminal, print the output that the page shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp import __version__
from tests.shown_output import Machine, Step, is_printed, steps
from tests.stage.guides import CTRL_C, ENTER, abacus

PAGES = [Path(__file__).parents[1] / "docs" / name for name in ("quick-start.md", "zh/quick-start.md")]
NEXT = re.compile(r"^  (a2c-smcp agent call .*?) *$", re.MULTILINE)


def configuration() -> dict[str, Any]:
    return {"mcpServers": {"abacus": {**abacus(), "env": {"ABACUS_TOKEN": "tk-4bdc7306eb0e4a5b7a7c"}}}}


@pytest.fixture
def machine(machine: Machine) -> Machine:
    machine.put(".config/Claude/claude_desktop_config.json", configuration())
    return machine


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
    running = await machine.starts(f"{up.command} --port 0")
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


@pytest.mark.parametrize("words", ["import cursor", "key"])
async def test_its_other_commands_print_what_it_says(machine: Machine, words: str) -> None:
    machine.put(".cursor/mcp.json", configuration())
    wanted = step(f"^a2c-smcp {words}")
    said = await machine.runs(wanted.command)
    assert is_printed(wanted.prints, said), said


async def test_the_demo_prints_what_it_says_in_colours(machine: Machine) -> None:
    wanted = step("^a2c-smcp demo")
    program = await machine.starts(f"{wanted.command} --fast")
    assert await program.ends() == 0
    assert is_printed(wanted.prints, program.screen.text), program.screen.text
    assert program.screen.colours


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
