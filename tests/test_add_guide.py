"""The pages on adding, updating and removing servers: what they show is what is printed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from a2c_smcp.mcp_host.processes.plan import possible
from tests.computer.pseudo_terminal import Screen
from tests.shown_output import Machine, is_printed, steps
from tests.stage.guides import ENTER, GUIDES
from tests.stage.registries import Registries, registries

ADD, UPDATE = GUIDES / "add-servers.md", GUIDES / "update-servers.md"
SHOWN = {step.command: step.prints for page in (ADD, UPDATE) for step in steps(page)}
PACKAGE = "mcp-server-time"

pytestmark = [
    pytest.mark.covers("add", "examples"),
    pytest.mark.skipif(not possible().ports, reason="this kernel's Landlock has no TCP ports"),
]


@pytest.fixture
def index() -> Iterator[Registries]:
    with registries() as served:
        yield served


def waits_with(question: str) -> Callable[[Screen], bool]:
    """The last space of a question is written by itself."""
    return lambda screen: screen.line.endswith(f"{question} [y/N]: ")


async def carried_out(machine: Machine, index: Registries, beginning: str, *asked: str) -> None:
    """Run the command of a page at a terminal, say yes to each question, and compare what was printed."""
    (command,) = (each for each in SHOWN if each.startswith(beginning))
    program = await machine.starts(command, **index.environ)
    for question in asked:
        await program.shows(waits_with(question))
        program.types(f"y{ENTER}")
    assert await program.ends() == 0, program.screen.text
    assert is_printed(SHOWN[command], program.screen.text), program.screen.text


async def test_the_pages_show_what_is_printed(machine: Machine, index: Registries) -> None:
    index.pypi(PACKAGE, "2026.10.19")
    await carried_out(machine, index, "a2c-smcp add clock", "Install it, and add it to a2c.json?")
    await carried_out(machine, index, "a2c-smcp list")
    index.pypi(PACKAGE, "2026.11.2", tools=("words", "home", "read", "late"), by="Bob")
    await carried_out(machine, index, "a2c-smcp update clock", "Install it?", "Use it?")
    removed = await machine.starts("a2c-smcp remove clock")
    await removed.shows(waits_with("Remove clock?"))
    removed.types(f"y{ENTER}")
    assert await removed.ends() == 0
    assert not [*machine.home.glob(".local/share/a2c-smcp/servers/*")]


async def test_a_no_installs_nothing(machine: Machine, index: Registries) -> None:
    index.pypi(PACKAGE, "2026.10.19")
    (command,) = (each for each in SHOWN if each.startswith("a2c-smcp add clock"))
    program = await machine.starts(command, **index.environ)
    await program.shows(waits_with("Install it, and add it to a2c.json?"))
    program.types(ENTER)
    assert await program.ends() == 1
    assert "Nothing was added." in program.screen.text
    assert not [*machine.home.glob(".local/share/a2c-smcp/servers/*"), *machine.folder.glob("a2c.json")]
