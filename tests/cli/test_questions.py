"""Questions, progress and logs of real MCP servers: for the owner at the prompt, and for who runs `agent call`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.computer.computer import Computer
from tests.computer.hosted import hosted, ready
from tests.computer.pseudo_terminal import on_a_terminal
from tests.computer.supervised import command_of
from tests.program import PROGRAM, run_program, start_program
from tests.stage.computer_program import surroundings
from tests.stage.prompt import CTRL_C, CTRL_D, ENTER, Dialogue, Opens, asks, opens, planner
from tests.waiting import until

__all__ = ["opens", "planner"]

pytestmark = pytest.mark.covers("question-forms")

CHOICE, SEND = re.compile(r"\(number of the choice\):"), re.compile(r"^Send this\?")
ASKING, OLDER = "asking.py", "older_asking.py"


def notes(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def written(folder: Path) -> str:
    """The text of all files."""
    return "".join(path.read_text() for path in folder.rglob("*") if path.is_file())


# At the prompt of a computer


@pytest.mark.covers("prompt")
@pytest.mark.parametrize("script", [ASKING, OLDER])
async def test_two_questions_in_a_row_are_answered_at_the_prompt_and_the_tool_runs_once(
    opens: Opens, planner: AsyncSMCPAgentClient, office: str, tmp_path: Path, script: str
) -> None:
    prompt = await opens({"travel": command_of(script, tmp_path / "notes")[1:]}, "--yes")
    call = await asks(planner, "book")
    await prompt.shows(
        f"#1 travel, while book runs for planner in {office}, asks:\n│ Which city?\n  answer / decline\n"
    )
    await prompt.shows(re.compile(r"\n#1 .* asks a question: answer / decline"))
    await prompt.enters("answer", "Your answer goes to the MCP server travel.")
    await prompt.answers(CHOICE, "3", "choose a number from 1 to 2")
    prompt.types("2" + ENTER)
    if script == OLDER:
        await prompt.answers(re.compile(r"^mail \(e-mail address"), "")
        await prompt.answers(SEND, "")
    await prompt.shows("#2 travel, while book runs for planner")
    await prompt.line()
    await prompt.enters("answer #2", lambda screen: re.match(r"(?i)count \(whole number.*\) \[2\]:", screen.line))
    prompt.types("4" + ENTER)
    if script == OLDER:
        await prompt.answers(re.compile(r"^extras \(numbers"), "1")
        await prompt.answers(SEND, "y")
    assert re.search("PEK.*4", (await call).text, re.DOTALL)
    assert notes(tmp_path / "notes").count("book") == 1
    await prompt.line()


@pytest.mark.covers("prompt")
async def test_a_question_is_declined_left_unanswered_and_withdrawn(
    opens: Opens, planner: AsyncSMCPAgentClient, tmp_path: Path
) -> None:
    prompt = await opens({"travel": command_of(OLDER, tmp_path / "notes")[1:]}, "--yes")
    call = await asks(planner, "book")
    await prompt.shows("#1 travel")
    await prompt.enters("decline", "#1 is declined")
    assert '"action": "decline"' in (await call).text
    call = await asks(planner, "sign")
    await prompt.shows("#2 travel")
    await prompt.enters("answer", lambda screen: screen.line.rstrip() == "password (text, not shown):")
    prompt.types(CTRL_C)
    await prompt.shows("left unanswered")
    assert '"action": "cancel"' in (await call).text
    await prompt.line()
    call = await asks(planner, "book")
    await prompt.shows("#3 travel")
    await prompt.enters("answer", lambda screen: "(number of the choice):" in screen.line)
    call.cancel()
    await prompt.shows("the question is withdrawn: its call has ended, or its time is over")
    await prompt.line()
    await prompt.enters("answer", "no question waits for an answer")
    await prompt.enters("decline 7", "no question 7 waits for an answer")


@pytest.mark.covers("prompt")
async def test_a_secret_answer_is_seen_nowhere_and_other_output_waits_for_the_end_of_the_form(
    opens: Opens, planner: AsyncSMCPAgentClient, tmp_path: Path
) -> None:
    prompt = await opens({"travel": command_of(OLDER, tmp_path / "notes")[1:]}, "--yes", "--log-level", "debug")
    call = await asks(planner, "sign")
    await prompt.shows("#1 travel")
    await prompt.enters("answer", lambda screen: screen.line.rstrip() == "password (text, not shown):")
    other = await asks(planner, "book")
    prompt.types("hunter2-hunter2" + ENTER)
    await prompt.shows("#2 travel")
    assert "signed with ***" in (await call).text
    form = prompt.screen.text.partition("Your answer goes to")[2].partition("***************")[0]
    assert "#2" not in form
    await prompt.line()
    await prompt.enters("logs travel", "warning  sign: it is ***")
    await prompt.enters("decline")
    await other
    assert "hunter2" not in prompt.screen.raw
    assert "hunter2" not in written(tmp_path)


@pytest.mark.covers("prompt")
async def test_the_logs_of_a_server_are_shown_from_a_level_on(
    opens: Opens, planner: AsyncSMCPAgentClient, tmp_path: Path
) -> None:
    prompt = await opens({"travel": command_of(OLDER, tmp_path / "notes")[1:]}, "--yes")
    await prompt.enters("logs travel", "travel has written nothing to stderr, and logged nothing")
    await prompt.enters("logs travel --level debug", "travel is asked to log debug and above")
    await until(lambda: "level:debug" in notes(tmp_path / "notes"))
    await (await asks(planner, "chat"))
    await prompt.enters("logs travel", re.compile(r'\d\d:\d\d:\d\d debug    chat: \{"step": ?2\}'))
    await prompt.enters("logs travel --level loud", "level: must be one of debug, info")
    await prompt.enters("logs travel loud", "usage: logs SERVER [--level LEVEL]")


# For who runs `agent call`


class Office:
    """A computer without an owner at a terminal, and programs of an agent in its office."""

    def __init__(self, url: str, office: str, computer: Computer, stack: AsyncExitStack, folder: Path) -> None:
        self.computer, self.folder, self._stack = computer, folder, stack
        self.environ = {**surroundings(folder / "state"), "A2C_URL": url, "A2C_OFFICE": office}

    @property
    def notes(self) -> list[str]:
        return notes(self.folder / "notes")

    async def terminal(self, *words: str, columns: int = 120, **streams: Any) -> Dialogue:
        env = {**self.environ, "TERM": "xterm-256color"}
        program = on_a_terminal(str(PROGRAM), "agent", *words, env=env, lines=50, columns=columns, **streams)
        return Dialogue(await self._stack.enter_async_context(program))

    async def run(self, *words: str) -> Any:
        return await asyncio.to_thread(run_program, "agent", *words, env=self.environ)


@pytest.fixture
async def desk(shared_hub: Any, office: str, tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    async with AsyncExitStack() as stack:

        async def start(script: str, **options: Any) -> Office:
            computer = Computer("laptop", approve=lambda _: True)
            command, *args = command_of(script, tmp_path / "notes")
            computer.add_server({"name": "travel", "command": command, "args": args, **options})
            await stack.enter_async_context(hosted(computer, shared_hub.url, office, tmp_path))
            await ready(computer, "travel")
            return Office(shared_hub.url, office, computer, stack, tmp_path)

        yield start


@pytest.mark.covers("agent-program")
@pytest.mark.parametrize("script", [ASKING, OLDER])
async def test_agent_call_asks_the_person_at_the_terminal(desk: Any, script: str) -> None:
    office = await desk(script)
    program = await office.terminal("call", "laptop", "book", "--json")
    await program.shows("book on laptop asks:\n│ Which city?\nYour answer goes to the MCP server travel of laptop.")
    await program.answers(CHOICE, "1")
    if script == OLDER:
        await program.answers(re.compile("^mail"), "x@y.example")
        await program.answers(SEND, "")
    await program.shows("│ How many seats")
    await program.asks(re.compile("(?i)^count"))
    program.types(CTRL_D)
    await program.shows("declined")
    assert await program.exit_code() == (0 if script == OLDER else 1)
    assert office.notes.count("book") == (1 if script == OLDER else 0)
    assert program.echoes


@pytest.mark.covers("agent-program")
async def test_a_question_whose_time_is_over_ends_its_form(desk: Any) -> None:
    office = await desk(ASKING)
    program = await office.terminal("call", "laptop", "book", "--timeout", "3")
    await program.asks(CHOICE)
    await program.shows("the question is withdrawn: its call has ended, or its time is over")
    assert await program.exit_code() == 1
    assert "--timeout gives it more time" in program.screen.text.replace("\n", "")
    assert program.echoes


@pytest.mark.covers("agent-program")
async def test_without_a_terminal_nobody_is_asked_and_nothing_but_the_result_is_printed(desk: Any) -> None:
    office = await desk(OLDER)
    done = await office.run("call", "laptop", "book", "--json")
    assert done.returncode == 0
    assert '"action": "cancel"' in json.loads(done.stdout)["content"][0]["text"]
    done = await office.run("call", "laptop", "chat", "steps=5")
    assert (done.stdout, done.stderr) == ('"done"\n', "")


@pytest.mark.covers("agent-program")
async def test_a_tool_that_cannot_go_on_without_an_answer_is_explained(desk: Any) -> None:
    office = await desk(ASKING)
    done = await office.run("call", "laptop", "book")
    assert done.returncode == 1
    assert "The tool asks its user something, and nobody could answer: call it on a terminal" in done.stderr


@pytest.mark.covers("agent-program")
async def test_secret_questions_and_pages_are_the_owners_unless_he_allows_agents(desk: Any) -> None:
    office = await desk(OLDER)
    program = await office.terminal("call", "laptop", "sign")
    assert await program.exit_code() == 0
    assert "password" not in program.screen.text


@pytest.mark.covers("agent-program")
async def test_an_allowed_page_is_shown_with_its_host_and_opened_after_a_yes(desk: Any) -> None:
    office = await desk(OLDER, questions_for_agents=["url"])
    script = office.folder / "browser"
    script.write_text(f'#!/bin/sh\nprintf %s "$1" > {office.folder / "opened"}\n')
    script.chmod(0o700)
    office.environ["BROWSER"] = str(script)
    program = await office.terminal("call", "laptop", "visit")
    await program.shows("visit on laptop asks you to open a page:\n│ Look here\nhttps://example.org/consent\n")
    await program.shows("That is a page of example.org.")
    await program.asks("Open it? (y or n):")
    assert not (office.folder / "opened").exists()
    program.types("y" + ENTER)
    assert await program.exit_code() == 0
    assert (office.folder / "opened").read_text() == "https://example.org/consent"


@pytest.mark.covers("agent-program")
async def test_progress_is_a_bar_on_a_terminal_and_ctrl_c_cancels_on_the_computer(desk: Any) -> None:
    office = await desk(OLDER)
    program = await office.terminal("call", "laptop", "chat", "steps=1000", "pause=0.05")
    await program.shows(re.compile(r"chat on laptop ━+ *╺?━* +\d+% \d+ of 1000, step \d+"))
    program.types(CTRL_C)
    await program.shows("chat was cancelled on laptop")
    assert await program.exit_code() == 1
    assert "%" not in program.screen.text
    await until(lambda: "cancelled" in office.notes)


@pytest.mark.covers("agent-program")
async def test_with_extend_a_call_may_take_longer_than_its_timeout(desk: Any) -> None:
    office = await desk(OLDER)
    done = await office.run("call", "laptop", "chat", "steps=15", "pause=0.2", "--timeout", "2")
    assert (done.returncode, "No answer in time" in done.stderr) == (1, True)
    done = await office.run("call", "laptop", "chat", "steps=15", "pause=0.2", "--timeout", "2", "--extend")
    assert (done.returncode, done.stdout) == (0, '"done"\n'), done.stderr


@pytest.mark.covers("agent-program")
async def test_agent_logs_follow_a_server_until_ctrl_c(desk: Any) -> None:
    office = await desk(OLDER)
    done = await office.run("logs", "laptop", "nowhere")
    assert (done.returncode, "There are travel." in done.stderr) == (1, True)
    running = await start_program("agent", "logs", "laptop", "travel", "--level", "debug", "--json", env=office.environ)
    assert running.stdout
    assert running.stderr
    assert b"showing what travel logs, from debug on (Ctrl-C ends it)" in await running.stderr.readline()
    await office.computer.execute_tool(*_as_owner(), "chat", {"steps": 2}, 60)
    first = json.loads(await running.stdout.readline())
    known = {"computer": "laptop", "mcp_server": "travel", "level": "debug", "logger": "chat", "data": {"step": 0}}
    assert {key: value for key, value in first.items() if key != "time"} == known
    running.send_signal(signal.SIGINT)
    assert await running.wait() == 0
    program = await office.terminal("logs", "laptop")
    await program.shows("showing what the MCP servers of laptop log, from info on (Ctrl-C ends it)")
    program.types(CTRL_C)
    assert await program.exit_code() == 0


def _as_owner() -> tuple[Any, str]:
    from a2c_smcp.computer.consent.approval import OWNER

    return OWNER, os.urandom(8).hex()
