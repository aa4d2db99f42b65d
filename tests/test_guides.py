"""Guides: their examples and commands do, and print, what the pages say."""

from __future__ import annotations

import asyncio
import re
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.computer import Computer
from tests.computer.hosted import hosted, ready
from tests.peer import Peer
from tests.shown_output import Machine, is_printed, steps, texts
from tests.sign_in.authorization_server import AuthorizationServer
from tests.sign_in.guarded_server import GuardedServer
from tests.sign_in.served import served
from tests.stage.browsing import redirect_of, visit
from tests.stage.guides import CTRL_C, ENTER, GUIDES, ROOT, Up, example_server
from tests.waiting import until

SIGN_IN, QUESTIONS, LONG_CALLS, RESOURCES = (
    GUIDES / f"{name}.md" for name in ("sign-in", "questions", "long-calls", "resources")
)
CALL, UP = r"a2c-smcp agent call \S+ book_table .*", r"a2c-smcp up .* --yes"

pytestmark = pytest.mark.covers("examples")

Example = Callable[[AsyncSMCPAgentClient], Awaitable[str]]


def examples(page: Path, function: str) -> list[Example]:
    """The functions of this name in the Python examples of a page, in their order."""
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    found = []
    for block in blocks:
        if f"async def {function}(agent:" in block:
            names: dict[str, Any] = {}
            exec(compile(block, page, "exec"), names)
            found.append(names[function])
    return found


def command(page: Path, pattern: str) -> str:
    """The command of a page that is like this. A page may have it twice."""
    (found,) = {each.command for each in steps(page) if re.fullmatch(pattern, each.command)}
    return found


def output(page: Path, beginning: str) -> str:
    """The one output of a page that begins like this."""
    (found,) = texts(page, beginning)
    return found


def is_shown(page: Path, beginning: str) -> Callable[[Any], bool]:
    """True if a screen shows that output."""
    return lambda screen: is_printed(output(page, beginning), screen.text)


# In Python


@pytest.fixture
async def agent(shared_hub: Any, office: str, tmp_path: Path) -> AsyncIterator[AsyncSMCPAgentClient]:
    """An agent in an office with the computer of the guides."""
    computer = Computer("laptop", approve=lambda request: True)
    for name in ("restaurant", "library"):
        computer.add_server({"name": name, "type": "stdio", "server_parameters": example_server(name)})
    async with hosted(computer, shared_hub.url, office, tmp_path):
        await ready(computer, "restaurant", "library")
        async with AsyncSMCPAgentClient("planner", url=shared_hub.url, office=office) as client:
            yield client


async def test_questions_are_answered_by_both_examples(
    agent: AsyncSMCPAgentClient, capsys: pytest.CaptureFixture[str]
) -> None:
    answered, passed_on = examples(QUESTIONS, "book")
    assert await answered(agent) == "Booked for Friday: 4 people, inside"
    assert capsys.readouterr().out == "A table for Friday ['people', 'place']\n"
    assert await passed_on(agent) == "Booked for Friday: 4 people, inside"
    unanswered = await agent.emit_tool_call("laptop", "book_table", {"day": "Friday"})
    assert unanswered.is_error


async def test_progress_is_shown(agent: AsyncSMCPAgentClient, capsys: pytest.CaptureFixture[str]) -> None:
    shown, _ = examples(LONG_CALLS, "cook")
    assert await shown(agent) == "3 dishes are ready"
    assert "1.0 3.0 dish 2\n" in capsys.readouterr().out


async def test_resources_prompts_links_and_subscriptions_are_used(
    agent: AsyncSMCPAgentClient, capsys: pytest.CaptureFixture[str]
) -> None:
    (read,), (ask,), (find,), (follow,) = (examples(RESOURCES, name) for name in ("read", "ask", "find", "follow"))
    assert (await read(agent)).startswith("Emma Woodhouse, handsome, clever,")
    assert "library://catalogue text/plain\n" in capsys.readouterr().out
    assert (await ask(agent)).startswith("Write a review of Moby-Dick")
    assert (await find(agent)).startswith("Call me Ishmael.")
    assert capsys.readouterr().out == "library://books/Moby-Dick\n"
    async with asyncio.timeout(60):
        assert (await follow(agent)).startswith("Emma (lent)\n")


# On terminals


@pytest.fixture
def restaurant(machine: Machine) -> Machine:
    machine.put("../work/restaurant.json", {"mcpServers": {"restaurant": example_server("restaurant")}})
    return machine


FORM = {"People (whole number from 1 to 12) [2]:": "4", "Place (number of the choice) [inside]:": "2"}
SEND = "Send this? (y, n to decline, or 1 to 2 to correct one) [y]:"


async def test_a_question_is_answered_at_the_prompt(restaurant: Machine) -> None:
    up = await Up.start(restaurant, command(QUESTIONS, UP))
    called = await up.agent(command(QUESTIONS, CALL))
    await up.shows("answer / decline")
    await up.at("laptop>", "answer")
    for question, answer in FORM.items():
        await up.at(question, answer)
    await up.shows(lambda screen: screen.line.rstrip() == SEND)
    assert is_shown(QUESTIONS, "#1 restaurant")(up.program.screen), up.program.screen.text
    up.types(ENTER)
    await called.shows(output(QUESTIONS, "Booked"))
    assert await called.ends() == 0


async def test_a_question_is_answered_at_the_agents_terminal_or_by_nobody(restaurant: Machine) -> None:
    up = await Up.start(restaurant, command(QUESTIONS, f"{UP} --no-input"))
    called = await up.agent(command(QUESTIONS, CALL))
    await called.shows(is_shown(QUESTIONS, "book_table on laptop asks"))
    called.types(f"4{ENTER}")
    await called.shows("Place (number of the choice)")
    called.types(f"2{ENTER}")
    await called.shows("Send this?")
    called.types(ENTER)
    await called.shows("Booked for Friday: 4 people, terrace")
    assert await called.ends() == 0
    await up.shown_by(f"{command(QUESTIONS, CALL)} </dev/null", is_shown(QUESTIONS, "Client did not declare"), code=1)


async def test_progress_and_logs_are_shown(restaurant: Machine) -> None:
    up = await Up.start(restaurant, command(QUESTIONS, UP))
    called = await up.agent(command(LONG_CALLS, r"a2c-smcp agent call laptop cook \S+"))
    await called.shows(is_shown(LONG_CALLS, "… cook on laptop"))
    await called.shows(texts(LONG_CALLS, "3 dishes")[0])
    assert await called.ends() == 0
    extended = await up.agent(command(LONG_CALLS, ".* --extend"))
    assert await extended.ends() == 0, extended.screen.text
    logs = await up.agent(command(LONG_CALLS, "a2c-smcp agent logs .*"))
    await logs.shows("Ctrl-C ends it")
    await up.at("laptop>", "call cook dishes=2 seconds=0.01")
    await up.shows("2 dishes are ready")
    await logs.shows(is_shown(LONG_CALLS, "showing what"))
    logs.types(CTRL_C)
    assert await logs.ends() == 0
    await up.at("laptop>", "logs restaurant --level info")
    await up.shows(is_shown(LONG_CALLS, "laptop> logs"))


async def test_resources_and_prompts_are_shown(machine: Machine) -> None:
    machine.put("../work/library.json", {"mcpServers": {"library": example_server("library")}})
    up = await Up.start(machine, command(RESOURCES, UP))
    shown = [step for step in steps(RESOURCES) if step.command.startswith("a2c-smcp agent ")]
    assert len(shown) == 9
    for step in shown:
        await up.prints(step, code=int("which a terminal cannot show" in step.prints))
    assert (machine.folder / "stamp.png").read_bytes().startswith(b"\x89PNG")


# Sign-in


@pytest.fixture
async def tracker(machine: Machine) -> AsyncIterator[GuardedServer]:
    provider = AuthorizationServer()
    async with served(provider.app), GuardedServer(provider).running() as server:
        parameters = {"url": server.mcp_url, "auth": {"issuer": provider.issuer}}
        machine.put(
            "../work/servers.json", {"servers": {"tracker": {"type": "streamable", "server_parameters": parameters}}}
        )
        yield server


class Browser:
    """The program in `$BROWSER`. It only notes the page, which the test opens when it has looked at the screen."""

    def __init__(self, folder: Path) -> None:
        self._noted, program = folder / "page", folder / "browser"
        program.write_text(f'#!/bin/sh\necho "$1" > {self._noted}\n')
        program.chmod(0o700)
        self.environ = {"BROWSER": str(program)}

    async def visits(self) -> None:
        await until(lambda: self._noted.exists() and self._noted.read_text().endswith("\n"))
        await asyncio.to_thread(visit, self._noted.read_text().strip())
        self._noted.unlink()


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    return Browser(tmp_path)


async def test_a_browser_signs_in_and_a_login_beside_a_computer_is_noticed(
    machine: Machine, tracker: GuardedServer, browser: Browser
) -> None:
    up = await Up.start(machine, command(SIGN_IN, UP), **browser.environ)
    await up.at("laptop>", "login tracker")
    await up.shows("to sign in there:")
    await browser.visits()
    await up.shows(is_shown(SIGN_IN, "tracker auth_required"))
    logout = command(SIGN_IN, "a2c-smcp logout .*")
    said = await machine.runs(logout)
    assert is_printed(output(SIGN_IN, "Signed out"), said), said
    await up.shows("tracker: auth_required")
    is_told = is_shown(SIGN_IN, "The MCP server 'tracker' wants")
    await up.shown_by(command(SIGN_IN, "a2c-smcp agent call .*"), is_told, code=1)
    login = await machine.starts(command(SIGN_IN, r"a2c-smcp login \S+ --config \S+"), **browser.environ)
    await login.shows("to sign in there:")
    await browser.visits()
    assert await login.ends() == 0
    assert is_printed(texts(SIGN_IN, "signing in to tracker\nOpening")[0], login.screen.text), login.screen.text
    await up.shows(lambda screen: screen.text.count("tracker: ready") == 2)


async def test_without_a_browser_the_address_is_pasted(machine: Machine, tracker: GuardedServer) -> None:
    login = await machine.starts(command(SIGN_IN, ".* --no-browser"))
    await login.shows(lambda screen: screen.line.startswith("Address:"))
    (page,) = re.findall(r"^(http\S+/authorize\S+)", login.screen.raw, re.MULTILINE)
    login.types((await asyncio.to_thread(redirect_of, page)) + ENTER)
    assert await login.ends() == 0
    assert is_printed(texts(SIGN_IN, "signing in to tracker\nOpen")[0], login.screen.text), login.screen.text
    (tokens,) = (machine.home / ".local" / "state" / "a2c-smcp" / "sign-in").glob("*.tokens")
    assert stat.S_IMODE(tokens.stat().st_mode) == 0o600


# Skills


SKILLS = GUIDES / "skills.md"


async def test_skills_are_listed_and_read_and_saved(machine: Machine) -> None:
    machine.put("../work/kitchen.json", {"mcpServers": {"kitchen": example_server("skill")}})
    await machine.runs(command(SKILLS, r"mkdir -p .*(?s:.)*"))
    up = await Up.start(machine, command(SKILLS, UP))
    is_listed = is_shown(SKILLS, "laptop> skills")
    for times in count(1):  # those of a server are listed some time after it is ready
        await up.at("laptop>", "skills")
        await up.shows(lambda screen, times=times: screen.text.count("> skills") == times)
        await up.shows(lambda screen: screen.line.rstrip() == "laptop>")
        if is_listed(up.program.screen):
            break
    for step in [each for each in steps(SKILLS) if each.command.startswith("a2c-smcp agent")]:
        await up.prints(step, code=int("has no skill" in step.prints))
    (machine.home / ".a2c" / "skills" / "user" / "release-notes" / "logo.png").write_bytes(b"\x89PNG\0")
    skill, remedy = "a2c-smcp agent skill laptop release-notes", "a terminal cannot show. --output FILE saves it."
    await up.shown_by(f"{skill} logo.png", f"logo.png is binary (image/png), which {remedy}", code=1)
    await up.shown_by(f"{skill} logo.png --output saved.png", "5 bytes written to saved.png")
    assert (machine.folder / "saved.png").read_bytes() == b"\x89PNG\0"
    whole = '"body": "One line for each change. No names of people.\\n"'
    await up.shown_by(f"{skill} style.md --json | cat", whole)


async def test_skills_are_read_by_the_example(
    shared_hub: Any, office: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "skills" / "user" / "release-notes"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\ndescription: Notes.\n---\nGroup them.\n")
    computer = Computer("laptop", skills=tmp_path / "skills")
    computer.add_server({"name": "kitchen", "type": "stdio", "server_parameters": example_server("skill")})
    async with hosted(computer, shared_hub.url, office, tmp_path / "state"):
        await until(lambda: len(computer.skills.references()) == 2)
        async with AsyncSMCPAgentClient("planner", url=shared_hub.url, office=office) as client:
            (instructions,) = examples(SKILLS, "instructions")
            assert await instructions(client) == "Group them.\n"
    assert "mcp:kitchen:cooking - How to cook with the tools of this kitchen." in capsys.readouterr().out


# Large files


LARGE_FILES = GUIDES / "large-files.md"
REPORT = bytes(3_000_000)


async def test_files_are_saved_and_sent(machine: Machine) -> None:
    machine.put("../work/scanner.json", {"mcpServers": {"scanner": example_server("scanner")}})
    up = await Up.start(machine, command(LARGE_FILES, UP))
    shown = [step for step in steps(LARGE_FILES) if "a2c-smcp agent" in step.command]
    assert len(shown) == 7
    for step in shown[:-1]:
        await up.prints(step)
    assert [path.stat().st_size for path in (machine.folder / "scans").iterdir()] == [3_000_054] * 2
    assert (machine.folder / "page.bmp").stat().st_size == 3_000_054
    landed = [path.read_bytes() for path in (machine.folder / "inbox").iterdir() if path.is_file()]
    assert landed == [REPORT] * 2


async def test_without_a_folder_for_them_files_are_refused(machine: Machine) -> None:
    machine.put("../work/scanner.json", {"mcpServers": {"scanner": example_server("scanner")}})
    (machine.folder / "report.pdf").write_bytes(REPORT)
    up = await Up.start(machine, command(LARGE_FILES, UP).replace("--landing inbox", ""))
    *_, refused = [step for step in steps(LARGE_FILES) if "a2c-smcp agent" in step.command]
    await up.prints(refused, code=1)


async def test_a_bar_shows_how_far_a_transfer_is(machine: Machine, shared_hub: Any, office: str, connect: Any) -> None:
    async def first_only(data: dict[str, Any]) -> Any:
        if data["chunk_offset"]:
            await asyncio.Event().wait()
        return {"upload_id": "u", "chunk_offset": 0}

    computer: Peer = await connect()
    computer.answers("client:get_tools", {"tools": [], "req_id": "x"})
    computer.answers("client:put_blob", first_only)
    await computer.join("computer", "laptop", office)
    (machine.folder / "report.pdf").write_bytes(REPORT[:1_000_000])
    put = "a2c-smcp agent put laptop report.pdf"
    program = await machine.starts(put, A2C_URL=shared_hub.url, A2C_OFFICE=office)
    await program.shows(is_shown(LARGE_FILES, "… report.pdf to laptop"))
    program.types(CTRL_C)
    assert await program.ends() == 1


async def test_files_are_saved_and_sent_by_the_examples(
    shared_hub: Any, office: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "report.pdf").write_bytes(REPORT)
    computer = Computer("laptop", approve=lambda request: True, landing=Path("inbox"))
    computer.add_server({"name": "scanner", "type": "stdio", "server_parameters": example_server("scanner")})
    async with hosted(computer, shared_hub.url, office, tmp_path / "state"):
        await ready(computer, "scanner")
        async with AsyncSMCPAgentClient("planner", url=shared_hub.url, office=office) as client:
            (scan,), (send,) = (examples(LARGE_FILES, name) for name in ("scan", "send"))
            assert await scan(client) == str(Path("scans/image-1.bmp"))
            assert "6,000,108 of 6,000,108 bytes\n" in capsys.readouterr().out
            assert (await send(client)).startswith("3,000,000 bytes, SHA-256 ")


# Pinned tools and scanners

PINNED, SCANNERS = GUIDES / "pinned-tools.md", GUIDES / "scanners.md"
CTRL_D = "\x04"


@pytest.fixture
def weather(machine: Machine) -> Machine:
    machine.put("../work/weather.json", {"mcpServers": {"weather": example_server("changing")}})
    (machine.folder / "examples").symlink_to(ROOT / "examples")
    return machine


@pytest.mark.covers("pinned-tools")
async def test_a_tool_that_has_changed_is_asked_about_again(weather: Machine) -> None:
    plain, changed = texts(PINNED, "#1 … in desk wants forecast of weather")
    start, call = command(PINNED, "a2c-smcp up .* --name laptop"), command(PINNED, "a2c-smcp agent call .*")
    up = await Up.start(weather, start)
    called = await up.agent(call)
    await up.shows(lambda screen: is_printed(plain, screen.text))
    await up.at("laptop>", "always tool good")
    assert await called.ends() == 0, called.screen.text
    up.types(CTRL_D)
    assert await up.program.ends() == 0
    await weather.runs(command(PINNED, "echo .*"))
    up = await Up.start(weather, start)
    await up.shows(is_shown(PINNED, "forecast of weather has changed"))
    listed = await up.agent(command(PINNED, "a2c-smcp agent tools"))
    await listed.shows(is_shown(PINNED, "tool"))
    called = await up.agent(call)
    await up.shows(lambda screen: is_printed(changed, screen.text))
    await up.at("laptop>", "n")
    await called.shows("description:")
    assert await called.ends() == 1
    up.types(CTRL_D)
    assert await up.program.ends() == 0
    up = await Up.start(weather, command(PINNED, "a2c-smcp up .* --no-input"))
    await up.shown_by(f"{call} </dev/null", is_shown(PINNED, "Approval refused"), code=1)


@pytest.mark.covers("scanners")
@pytest.mark.parametrize("scanner", ["examples/redact_emails.py:scan", '"python .*"'], ids=["function", "command"])
async def test_e_mail_addresses_are_redacted(weather: Machine, scanner: str) -> None:
    up = await Up.start(weather, command(SCANNERS, f"a2c-smcp up .* --scanner {scanner}"))
    shown = [step for step in steps(SCANNERS) if step.command.startswith("a2c-smcp agent")]
    assert len(shown) == 2
    for step in shown:
        is_refused = step.prints.startswith("Refused")
        wanted = "e-mail addresses stay here" if is_refused and "python" in scanner else step.prints
        await up.shown_by(
            step.command,
            lambda screen, wanted=wanted: wanted in screen.text or is_printed(wanted, screen.text),
            is_refused,
        )


@pytest.mark.covers("scanners")
async def test_a_scanner_that_is_not_there_ends_the_program_with_a_remedy(weather: Machine) -> None:
    program = await weather.starts("a2c-smcp computer --config weather.json --scanner nowhere:scan")
    await program.shows("Correct or leave out the scanner.")
    assert await program.ends() == 1
