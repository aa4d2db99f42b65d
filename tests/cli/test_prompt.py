"""The prompt of `a2c-smcp computer`, on a pseudo-terminal: what its owner types, and what he sees."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shlex
import signal
import stat
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.errors import ApprovalRefused, ComputerLeft, SMCPError
from a2c_smcp.server import DefaultAuthenticationProvider
from tests.computer.hosted import pids_with
from tests.computer.pseudo_terminal import OnTerminal, Screen, on_a_terminal
from tests.computer.supervised import SERVERS, all_gone, eventually
from tests.computer.test_computer import GOOD
from tests.computer.test_program import HANGS, surroundings
from tests.program import PROGRAM

INPUTS = [{"id": "token", "type": "promptString", "description": "Token", "password": True}]
GOOD_INLINE = f"import runpy; sys.argv = ['good.py', 'stdio']; runpy.run_path({str(GOOD)!r}, run_name='__main__')"
ENTER, TAB, UP, BACKSPACE, CTRL_C, CTRL_D = "\r", "\t", "\x1b[A", "\x7f", "\x03", "\x04"


class Prompt:
    """A run of the program, as its owner sees it."""

    def __init__(self, program: OnTerminal) -> None:
        self.program = program
        self.screen = program.screen

    async def shows(self, wanted: str | Callable[[Screen], Any]) -> str:
        return await self.program.shows(wanted)

    async def line(self, text: str = "") -> None:
        """Waits until this is what stands on the line, and nothing else."""
        await self.shows(lambda screen: screen.line.rstrip() == f"laptop> {text}".rstrip())

    async def asks(self, text: str) -> None:
        """Waits until there is a question in place of the line, with no answer yet."""
        await self.shows(lambda screen: screen.line.rstrip() == text)

    async def enters(self, command: str) -> None:
        self.program.types(command)
        await self.line(command)
        self.program.types(ENTER)

    def types(self, keys: str) -> None:
        self.program.types(keys)

    async def result(self, call: asyncio.Task[Any]) -> Any:
        """The result of a call that needs nothing of the owner. If it fails, the screen says why."""
        try:
            return await call
        except SMCPError as error:
            raise AssertionError(f"{error}\n{self.program.screen.text}") from error

    async def ends(self) -> str:
        """What the screen says in the end."""
        assert await self.program.ends() == 0
        assert self.program.echoes
        return await self.shows("stopped\n")


Opens = Callable[..., Any]


@pytest.fixture
async def opens(shared_hub: Any, office: str, tmp_path: Path) -> AsyncIterator[Opens]:
    """Starts a computer in the test's office, with servers `{name: arguments of python}`; the line is there."""
    async with AsyncExitStack() as stack:

        async def start(
            servers: dict[str, list[str]] | None = None,
            *options: str,
            url: str = "",
            marker: str = "",
            line: bool = True,
            columns: int = 120,
        ) -> Prompt:
            found = {name: python(*words, marker=marker) for name, words in (servers or {}).items()}
            config = tmp_path / "servers.json"
            config.write_text(json.dumps({"mcpServers": found, "inputs": INPUTS}), "utf-8")
            where = ["--name", "laptop", "--url", url or shared_hub.url, "--office", office]
            command = [str(PROGRAM), "computer", *where, "--config", str(config), *options]
            env = {**surroundings(tmp_path), "TERM": "xterm-256color"}
            program = on_a_terminal(*command, env=env, lines=50, columns=columns)
            prompt = Prompt(await stack.enter_async_context(program))
            if line:
                await prompt.line()
            return prompt

        yield start


def python(*words: str, marker: str = "") -> dict[str, Any]:
    return {"command": sys.executable, "args": words, "env": {"MARKER": marker}}


@pytest.fixture
async def planner(shared_hub: Any, office: str) -> AsyncIterator[AsyncSMCPAgentClient]:
    async with AsyncSMCPAgentClient("planner", url=shared_hub.url, office=office) as agent:
        yield agent


async def asks(agent: AsyncSMCPAgentClient, tool: str = "add", timeout: int = 60, **params: Any) -> asyncio.Task[Any]:
    """A call that waits for the owner."""
    await eventually(lambda: agent.computers)
    return asyncio.create_task(agent.emit_tool_call("laptop", tool, params or {"a": 1, "b": 2}, timeout))


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def kept(folder: Path) -> list[Any]:
    """What is remembered of grants, all places together."""
    files = [*(folder / "a2c-smcp" / "approvals").glob("*.json")]
    assert all(mode_of(file) == 0o600 for file in files)
    return [grant for file in files for place in json.loads(file.read_text()).values() for grant in place]


@pytest.mark.covers("prompt")
async def test_tab_completes_commands_servers_tools_and_arguments(opens: Opens) -> None:
    prompt = await opens({"good": [str(GOOD)]})
    for typed, meant in {
        "he": "help",
        "server resta": "server restart",
        "logs g": "logs good",
        "call ad": "call add",
        "call touch_window u": "call touch_window uri=",
    }.items():
        prompt.types(typed + TAB)
        await prompt.line(meant)
        prompt.types(CTRL_C)
        await prompt.line()
    prompt.types("server " + TAB)
    await prompt.shows(lambda screen: re.search(r"restart +Stop and start a server", screen.text))
    prompt.types(CTRL_C)
    await prompt.line()
    prompt.types(CTRL_D)
    assert "Traceback" not in await prompt.ends()


@pytest.mark.covers("prompt")
async def test_a_server_is_added_used_looked_at_and_removed(opens: Opens) -> None:
    prompt = await opens(columns=1000)  # the line must not wrap, however long the path of the checkout is
    await prompt.enters(f"server add good {shlex.join([sys.executable, str(GOOD)])}")
    await prompt.shows("good is here until this program ends")
    await prompt.enters("tools good")
    await prompt.shows(lambda screen: re.search(r"add +good +asks +Add two numbers\.", screen.text))
    await prompt.enters("call add a=2 b=3")
    await prompt.shows("\n5\n")
    await prompt.enters("call fail")
    await prompt.shows("Error executing tool fail")
    await prompt.enters("status")
    await prompt.shows(lambda screen: re.search(r"good +ready +9 +0 +2 +[\d.]+ m?s", screen.text))
    await prompt.enters("desktop")
    await prompt.shows("window://good/one?priority=5")
    await prompt.enters("history")
    await prompt.shows(lambda screen: re.search(r'good +add +done +\{"a": 2, "b": 3\}', screen.text))
    await prompt.enters("server rm good")
    await prompt.shows("good is removed")
    await prompt.enters("tools")
    await prompt.shows("no tools")
    prompt.types(CTRL_D)
    assert "Traceback" not in await prompt.ends()


@pytest.mark.covers("prompt")
async def test_the_error_of_a_server_is_forgotten_once_it_is_ready(opens: Opens, tmp_path: Path) -> None:
    tries = f"import pathlib, sys; tries = pathlib.Path({str(tmp_path / 'tries')!r}); tries.open('a').write('.')"
    fails_first = f"{tries}; len(tries.read_text()) < 3 and sys.exit('no luck today'); {GOOD_INLINE}"  # both eras
    prompt = await opens({"good": ["-c", fails_first]}, columns=1000)
    await prompt.enters("status")
    screen = await prompt.shows(lambda screen: re.search(r"good +ready +9 +\d", screen.text))
    assert "no luck today" not in next(line for line in screen.splitlines()[::-1] if re.match("good +ready", line))
    prompt.types(CTRL_D)
    await prompt.ends()


@pytest.mark.covers("prompt")
async def test_missing_arguments_are_asked_for_again_after_wrong_answers(opens: Opens) -> None:
    prompt = await opens({"good": [str(GOOD)]})
    await prompt.enters("call add")
    await prompt.asks("a (integer):")
    prompt.types("two" + ENTER)
    await prompt.shows("a must be integer, as JSON")
    await prompt.asks("a (integer):")
    prompt.types("2" + ENTER)
    await prompt.asks("b (integer):")
    prompt.types("3" + ENTER)
    await prompt.shows("\n5\n")
    await prompt.enters("call add a=1")
    await prompt.asks("b (integer):")
    prompt.types(CTRL_C)
    await prompt.shows("add is not called")
    await prompt.line()


@pytest.mark.covers("prompt")
async def test_output_of_other_tasks_does_not_interrupt_the_line(opens: Opens) -> None:
    marker = uuid4().hex
    prompt = await opens({"fine": [str(SERVERS / "naughty.py"), "fine"]}, marker=marker)
    prompt.types("call ec")
    await prompt.line("call ec")
    for pid in pids_with(marker):
        os.kill(pid, signal.SIGKILL)
    await prompt.shows("fine: backoff")
    await prompt.shows(lambda screen: screen.text.count("fine: ready") == 1)
    await prompt.line("call ec")
    assert not re.search(r"call ec.+", prompt.screen.text)
    prompt.types("ho" + ENTER)
    await prompt.shows("laptop> call echo\n")
    await prompt.enters("status")
    await prompt.shows(lambda screen: re.search(r"fine +ready +1 +1 +1 +[\d.]+ m?s *$", screen.text, re.M))


@pytest.mark.covers("prompt", "computer-cancel")
async def test_ctrl_c_cancels_the_running_call_and_ctrl_d_leaves_no_process(opens: Opens) -> None:
    marker = uuid4().hex
    prompt = await opens({"good": [str(GOOD)]}, marker=marker)
    await prompt.enters("call slow steps=1000 pause=0.05")
    await prompt.shows(lambda screen: re.search(r"call slow: \d+\.\d s, \d+ of 1000, step \d+, Ctrl-C", screen.text))
    prompt.types("a line")
    await prompt.line("a line")
    prompt.types(CTRL_C)
    await prompt.line()
    await prompt.shows("Ctrl-C ends it")
    prompt.types(CTRL_C)
    await prompt.shows("call slow is cancelled")
    await prompt.shows(lambda screen: "Ctrl-C ends it" not in screen.text)
    await prompt.enters("call add a=20 b=22")
    await prompt.shows("\n42\n")
    await prompt.enters("call slow steps=1000 pause=0.05")
    await prompt.shows("Ctrl-C ends it")
    children = pids_with(marker)
    assert children
    prompt.types(CTRL_D)
    await prompt.ends()
    await all_gone([*children, *pids_with(marker)])


@pytest.mark.covers("prompt")
@pytest.mark.parametrize("way", ["quit", "SIGTERM"])
async def test_quit_and_signals_end_the_prompt(opens: Opens, way: str) -> None:
    marker = uuid4().hex
    prompt = await opens({"good": [str(GOOD)]}, marker=marker)
    children = pids_with(marker)
    if way == "quit":
        await prompt.enters("quit")
    else:
        prompt.program.process.send_signal(signal.SIGTERM)
    assert "Traceback" not in await prompt.ends()
    await all_gone([*children, *pids_with(marker)])


@pytest.mark.covers("prompt")
async def test_a_signal_ends_the_prompt_while_a_question_is_open(opens: Opens) -> None:
    prompt = await opens({"asks": [str(GOOD), "stdio", "${input:token}"]}, line=False)
    await prompt.shows("Token: ")
    await eventually(lambda: not prompt.program.echoes)
    prompt.types("something secret" + ENTER)
    await prompt.line()
    await prompt.enters("inputs clear token")
    await prompt.asks("Token:")
    prompt.program.process.send_signal(signal.SIGTERM)
    assert "Traceback" not in await prompt.ends()


@pytest.mark.covers("prompt")
async def test_wrong_lines_are_answered_with_what_to_write(opens: Opens) -> None:
    prompt = await opens()
    for line, answer in {
        "frobnicate": "'frobnicate' is no command: help lists them",
        "server": "usage: server add NAME COMMAND…, or server rm SERVER",
        "server start": "usage: server start SERVER",
        "logs nowhere": "there is no server 'nowhere'. There are no MCP servers.",
        "call nothing": "there is no tool 'nothing': tools lists them",
        "call 'open": "a quotation mark is not closed",
        "inputs set nothing": "there is no input 'nothing': inputs list shows them",
        "y": "no request waited for an answer when this line was begun",
        "approve forget planner": "nothing like that is allowed to planner",
        "server add x {": "not JSON",
        "connect nowhere": "URL",
        "history many": "'many' is no number of calls",
    }.items():
        await prompt.enters(line)
        await prompt.shows(lambda screen, answer=answer: answer in screen.text.replace("\n", ""))
        await prompt.line()
    prompt.types("half a line")
    await prompt.line("half a line")
    prompt.types(CTRL_C)
    await prompt.line()
    prompt.types(CTRL_C)
    assert "Traceback" not in await prompt.ends()


@pytest.mark.covers("prompt", "inputs-sources")
async def test_inputs_are_set_and_cleared_and_secrets_are_shown_nowhere(opens: Opens, tmp_path: Path) -> None:
    words = ["-c", f"import sys; print(sys.argv, file=sys.stderr); {GOOD_INLINE}", "${input:token}"]
    prompt = await opens({"asks": words}, line=False)
    await prompt.shows("Token: ")
    await eventually(lambda: not prompt.program.echoes)
    prompt.types(CTRL_D)
    await prompt.line()
    await prompt.enters("inputs list")
    await prompt.shows(lambda screen: re.search(r"token +not known yet +Token", screen.text))
    await prompt.enters("inputs set token")
    await prompt.asks("Token:")
    prompt.types("hunter22" + ENTER)
    await prompt.shows("token is set (memory)")
    await prompt.shows("asks: ready")
    await prompt.enters("inputs list")
    await prompt.shows(lambda screen: re.search(r"token +explicit +hidden +Token", screen.text))
    await prompt.enters("logs asks")
    await prompt.shows("['-c',")
    await prompt.enters('call add {"a": 1, "b": "hunter22"}')
    await prompt.shows("params/b")
    await prompt.enters("inputs set token hunter22")
    await prompt.shows("the value is asked for, so that it is not seen")
    await prompt.enters("connect http://owner:hunter33@127.0.0.1:9")
    await prompt.asks("API key (Enter for none):")
    prompt.types("hunter44" + ENTER)
    await prompt.shows("not connected: 503")
    await prompt.enters("server add other no-such-command --api-key hunter55")
    await prompt.shows("other: failed")
    await prompt.line()
    await prompt.enters("inputs clear token")
    await prompt.shows("token is forgotten")
    await prompt.asks("Token:")
    prompt.types(CTRL_C)
    await prompt.shows("asks: failed")
    await prompt.line()
    prompt.types(CTRL_D)
    await prompt.ends()
    shown = [line for line in prompt.screen.lines if "hunter" in line]
    assert all(line.startswith("laptop> ") for line in shown), "only what the owner has typed in the open"
    history = tmp_path / "a2c-smcp" / "prompt_history"
    assert mode_of(history) == 0o600
    assert "hunter" not in history.read_text()
    assert "inputs set token\n" in history.read_text()
    assert "server add other no-such-command --api-key" in history.read_text()


@pytest.mark.covers("prompt")
async def test_lines_are_remembered_in_the_next_run(opens: Opens) -> None:
    prompt = await opens()
    await prompt.enters("tools")
    await prompt.shows("no tools")
    await prompt.line()
    prompt.types(CTRL_D)
    await prompt.ends()
    prompt = await opens()
    prompt.types("x")
    await prompt.line("x")
    prompt.types(BACKSPACE)
    await prompt.line()
    prompt.types(UP)
    await prompt.line("tools")


@pytest.mark.covers("prompt")
async def test_it_leaves_its_office_and_joins_another_at_another_server(
    opens: Opens, serve: Any, planner: AsyncSMCPAgentClient, office: str
) -> None:
    prompt = await opens({"good": [str(GOOD)]})
    await eventually(lambda: planner.computers)
    await prompt.enters("leave")
    await prompt.shows(f"left {office}")
    await eventually(lambda: not planner.computers)
    await prompt.enters(f"join {office}")
    await eventually(lambda: planner.computers)
    await prompt.enters(f"join {office}-2")
    await prompt.shows(f"joined {office}-2")
    await eventually(lambda: not planner.computers)
    url = (await serve(auth=DefaultAuthenticationProvider("the right key"))).url
    await prompt.enters(f"connect {url}")
    await prompt.asks("API key (Enter for none):")
    prompt.types("a wrong key" + ENTER)
    await prompt.shows(f"not in {office}-2: 401 Not authenticated")
    await prompt.enters(f"connect {url}")
    await prompt.asks("API key (Enter for the one in use):")
    prompt.types("the right key" + ENTER)
    await prompt.shows(lambda screen: screen.text.count(f"joined {office}-2") == 2)
    async with AsyncSMCPAgentClient("other", url=url, office=f"{office}-2", api_key="the right key") as other:
        await eventually(lambda: other.computers)
    assert "the right key" not in prompt.screen.raw


# Approvals


@pytest.mark.covers("prompt-approvals")
async def test_a_call_of_an_agent_runs_when_the_owner_says_yes_and_not_when_he_says_no(
    opens: Opens, planner: AsyncSMCPAgentClient, office: str
) -> None:
    prompt = await opens({"good": [str(GOOD)]})
    call = await asks(planner, a=40, b=2)
    await prompt.shows(f'#1 planner in {office} wants add of good\n  {{"a": 40, "b": 2}}\n  y / n / always tool')
    await prompt.shows(lambda screen: re.search(r"\n#1 .*: y / n / always tool / always agent", screen.text))
    await prompt.enters("y")
    assert (await call).text == "42"
    await prompt.shows(lambda screen: not re.search(r"\n#1 .*: y / n", screen.text))
    refused = await asks(planner, a=1, b=1)
    await prompt.shows("#2 planner")
    await prompt.enters("n")
    with pytest.raises(ApprovalRefused):
        await refused


@pytest.mark.covers("prompt-approvals")
async def test_always_tool_is_remembered_in_the_next_run_and_can_be_revoked(
    opens: Opens, planner: AsyncSMCPAgentClient, tmp_path: Path
) -> None:
    prompt = await opens({"good": [str(GOOD)]})
    calls = [await asks(planner), await asks(planner)]
    await prompt.shows("#2 planner")
    await prompt.enters("always tool")
    assert [(await call).text for call in calls] == ["3", "3"]
    await prompt.shows("planner may use add of good without asking; `approve forget planner` takes that back")
    assert kept(tmp_path) == [["planner", "good", "add"]]
    other = await asks(planner, "big", size=3)
    await prompt.shows("wants big of good")
    await prompt.enters("n")
    with pytest.raises(ApprovalRefused):
        await other
    prompt.types(CTRL_D)
    await prompt.ends()
    prompt = await opens({"good": [str(GOOD)]})
    assert (await prompt.result(await asks(planner))).text == "3"
    prompt.types("approve forget " + TAB)
    await prompt.line("approve forget planner")
    prompt.types(ENTER)
    await prompt.shows("no longer: planner may use add of good without asking")
    assert kept(tmp_path) == []
    call = await asks(planner)
    await prompt.shows("#1 planner")
    await prompt.enters("y")
    assert (await call).text == "3"


@pytest.mark.covers("prompt-approvals", "private-files")
async def test_what_others_on_this_machine_may_change_allows_nothing(
    opens: Opens, planner: AsyncSMCPAgentClient, office: str, shared_hub: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "a2c-smcp" / "approvals"
    folder.mkdir(parents=True)
    (tmp_path / "a2c-smcp").chmod(0o700)
    file = folder / f"{hashlib.sha256(b'laptop').hexdigest()[:32]}.json"
    file.write_text(json.dumps({f"{shared_hub.url} {office}": [["planner", None, None]]}), "utf-8")
    file.chmod(0o600)
    folder.chmod(0o770)
    prompt = await opens({"good": [str(GOOD)]})
    said = await prompt.shows("what was allowed for good does not count")
    assert f"{folder}: can be changed by others on this machine; run: chmod go-w {folder}" in said.replace("\n", "")
    call = await asks(planner)
    await prompt.shows("#1 planner")
    await prompt.enters("always tool")
    assert (await call).text == "3"
    await prompt.shows("cannot be used, what you allow lasts until this program ends")
    prompt.types(CTRL_D)
    await prompt.ends()
    folder.chmod(0o700)
    prompt = await opens({"good": [str(GOOD)]})
    assert (await prompt.result(await asks(planner))).text == "3"


@pytest.mark.covers("prompt-approvals")
async def test_always_for_an_agent_is_for_every_tool_and_for_this_office_only(
    opens: Opens, planner: AsyncSMCPAgentClient, shared_hub: Any, office: str, tmp_path: Path
) -> None:
    prompt = await opens({"good": [str(GOOD)]})
    call = await asks(planner)
    await prompt.shows("#1 planner")
    await prompt.enters("always agent")
    assert (await call).text == "3"
    assert kept(tmp_path) == [["planner", None, None]]
    assert (await (await asks(planner, "big", size=3))).text == "xxx"
    await prompt.enters("approve")
    await prompt.shows(lambda screen: re.search(r"planner +every server +every tool", screen.text))
    await prompt.enters(f"join {office}-2")
    await prompt.shows(f"joined {office}-2")
    async with AsyncSMCPAgentClient("planner", url=shared_hub.url, office=f"{office}-2") as namesake:
        call = await asks(namesake)
        await prompt.shows(f"#2 planner in {office}-2 wants add of good")
        await prompt.enters("n")
        with pytest.raises(ApprovalRefused):
            await call


@pytest.mark.covers("prompt-approvals", "client-names")
async def test_what_is_allowed_to_an_mcp_client_is_kept_for_it_alone(
    opens: Opens, planner: AsyncSMCPAgentClient, office: str, tmp_path: Path
) -> None:
    prompt = await opens({"good": [str(GOOD)]})
    await eventually(lambda: planner.computers)

    def calls(client: str) -> asyncio.Task[Any]:
        params, named = {"a": 1, "b": 2}, {"name": client, "version": "1"}
        return asyncio.create_task(planner.emit_tool_call("laptop", "add", params, 60, client=named))

    call = calls("claude-desktop")
    await prompt.shows(f"#1 planner (claude-desktop) in {office} wants add of good")
    await prompt.enters("always tool")
    assert (await call).text == "3"
    await prompt.shows("planner (claude-desktop) may use add of good without asking; `approve forget 'planner (claude")
    assert kept(tmp_path) == [["planner", "good", "add", "claude-desktop"]]
    assert (await calls("claude-desktop")).text == "3"
    other = calls("Visual Studio Code")
    await prompt.shows("#2 planner (Visual Studio Code)")
    await prompt.enters("n")
    with pytest.raises(ApprovalRefused):
        await other
    plain = await asks(planner)
    await prompt.shows("#3 planner in ")
    await prompt.enters("y")
    assert (await plain).text == "3"
    await prompt.enters("history")
    await prompt.shows(lambda screen: re.search(r"planner \(Visual Studio Code\) +good +add", screen.text))
    await prompt.enters("call add a=4 b=5")
    await prompt.shows("9")
    await prompt.enters("history 1")
    await prompt.shows(lambda screen: re.search(r"you +good +add +done", screen.text))
    prompt.types(CTRL_D)
    await prompt.ends()
    prompt = await opens({"good": [str(GOOD)]})
    assert (await prompt.result(calls("claude-desktop"))).text == "3"
    prompt.types("approve forget " + TAB)
    await prompt.line("approve forget 'planner (claude-desktop)'")
    prompt.types(ENTER)
    await prompt.shows("no longer: planner (claude-desktop) may use add of good without asking")
    assert kept(tmp_path) == []


@pytest.mark.covers("prompt-approvals")
async def test_an_answer_never_goes_to_a_request_that_came_while_it_was_typed(
    opens: Opens, planner: AsyncSMCPAgentClient
) -> None:
    prompt = await opens({"good": [str(GOOD)]})
    harmless = await asks(planner)
    await prompt.shows("#1 planner")
    prompt.types("y")
    await prompt.line("y")
    harmless.cancel()
    with pytest.raises(asyncio.CancelledError):
        await harmless
    await prompt.shows("#1 is withdrawn")
    other = await asks(planner, "crash")
    await prompt.shows("#2 planner")
    await prompt.line("y")
    prompt.types(ENTER)
    await prompt.shows("request #1 has been withdrawn, nothing was answered")
    await prompt.enters("n 2")
    with pytest.raises(ApprovalRefused):
        await other


@pytest.mark.covers("prompt-approvals")
async def test_secrets_in_arguments_are_masked_and_nothing_in_them_moves_the_cursor(
    opens: Opens, planner: AsyncSMCPAgentClient
) -> None:
    prompt = await opens({"good": [str(GOOD), "stdio", "--token=s3cr3t-v4lue"]})
    call = await asks(planner, "open_window", uri="window://x/y", text="s3cr3t-v4lue \x1b[2J\u202e" + "z" * 700)
    text = await prompt.shows("more characters …]")
    assert "\\u202e" in text
    assert "s3cr3t-v4lue" not in text
    assert "\x1b[2J" not in prompt.screen.raw
    await prompt.enters("status")
    await prompt.shows("treated as secret of good: --token")
    await prompt.enters("approve")
    await prompt.shows(lambda screen: "z" * 700 in screen.text.replace("\n", ""))
    await prompt.enters("n")
    with pytest.raises(ApprovalRefused):
        await call


@pytest.mark.covers("prompt-approvals")
async def test_a_request_opens_the_prompt_while_a_server_still_starts(
    opens: Opens, planner: AsyncSMCPAgentClient
) -> None:
    prompt = await opens({"good": [str(GOOD)], "hangs": HANGS}, line=False)
    await prompt.shows(lambda screen: re.search(r"good +ready", screen.text))
    call = await asks(planner)
    await prompt.shows("#1 planner")
    await prompt.line()
    await prompt.enters("y")
    assert (await call).text == "3"


@pytest.mark.covers("prompt-approvals")
async def test_leaving_the_office_refuses_pending_requests(opens: Opens, planner: AsyncSMCPAgentClient) -> None:
    prompt = await opens({"good": [str(GOOD)]})
    call = await asks(planner, timeout=5)
    await prompt.shows("#1 planner")
    await prompt.enters("leave")
    await prompt.shows(lambda screen: "\nleft " in screen.text and not re.search(r"\n#1 .*: y / n", screen.text))
    await prompt.enters("approve")
    await prompt.shows("no request waits, and nothing is allowed for good")
    with pytest.raises(ComputerLeft):
        await call


@pytest.mark.covers("prompt-approvals")
async def test_calls_of_the_owner_and_calls_with_yes_need_no_approval(
    opens: Opens, planner: AsyncSMCPAgentClient
) -> None:
    prompt = await opens({"good": [str(GOOD)]}, "--yes")
    assert (await (await asks(planner))).text == "3"
    await prompt.enters("call add a=1 b=1")
    await prompt.shows("\n2\n")
    assert "wants" not in prompt.screen.text


@pytest.mark.covers("prompt")
async def test_with_no_input_there_is_no_prompt_and_ctrl_c_stops_it(opens: Opens) -> None:
    prompt = await opens({"good": [str(GOOD)]}, "--no-input", line=False)
    await prompt.shows(lambda screen: re.search(r"good +ready", screen.text) and "joined" in screen.text)
    prompt.types(CTRL_C)
    assert "laptop>" not in await prompt.ends()
