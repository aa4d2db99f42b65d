"""The prompt of `a2c-smcp computer`, on a pseudo-terminal: what its owner types, and what he sees."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.errors import ApprovalRefused, CallFrozen, ComputerLeft, Frozen
from a2c_smcp.mcp_host.processes.plan import possible
from a2c_smcp.server import DefaultAuthenticationProvider
from tests.computer.hosted import pids_with
from tests.computer.supervised import SERVERS, all_gone, eventually
from tests.on_disk import mode_of
from tests.stage.prompt import BACKSPACE, CTRL_C, CTRL_D, ENTER, TAB, UP, Opens, asks, opens, planner
from tests.stage.registries import Registries, registries

__all__ = ["opens", "planner"]
from tests.stage.computer_program import GOOD, HANGS

pytestmark = pytest.mark.covers("prompt")

GOOD_INLINE = f"import runpy; sys.argv = ['good.py', 'stdio']; runpy.run_path({str(GOOD)!r}, run_name='__main__')"


def kept(folder: Path) -> list[Any]:
    """What is remembered of grants, all places together."""
    files = [*(folder / "a2c-smcp" / "approvals").glob("*.json")]
    assert all(mode_of(file) == 0o600 for file in files)
    files = [file for file in files if not file.name.endswith(".seen.json")]
    return [grant for file in files for place in json.loads(file.read_text()).values() for grant in place]


async def test_tab_completes_commands_servers_tools_and_arguments(opens: Opens) -> None:
    prompt = await opens({"good": [str(GOOD)]})
    for typed, meant in {
        "he": "help",
        "mcp resta": "mcp restart",
        "logs g": "logs good",
        "call ad": "call add",
        "call touch_window u": "call touch_window uri=",
    }.items():
        prompt.types(typed + TAB)
        await prompt.line(meant)
        await prompt.interrupts()
    prompt.types("mcp " + TAB)
    await prompt.shows(re.compile(r"restart +Stop and start an MCP server"))
    await prompt.interrupts()
    await prompt.quits()


async def test_a_server_is_used_looked_at_and_removed(opens: Opens) -> None:
    prompt = await opens({"good": [str(GOOD)]}, columns=1000)  # no line may wrap, however long the path is
    await prompt.enters("tools good", re.compile(r"add +good +asks +Add two numbers\."))
    await prompt.enters("call add a=2 b=3", "\n5\n")
    await prompt.enters("call fail", "Error executing tool fail")
    await prompt.enters("status", re.compile(r"good +ready +9 +0 +2 +[\d.]+ m?s"))
    await prompt.enters("desktop", "window://good/one?priority=5")
    await prompt.enters("history", re.compile(r'good +add +done +\{"a": 2, "b": 3\}'))
    await prompt.enters("mcp remove good")
    await prompt.answers("Remove good? [y/N]:", "y", "removed good from")
    await prompt.enters("tools", "no tools")
    await prompt.quits()


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Registries]:
    with registries() as served:
        for name, value in {**served.environ, "XDG_DATA_HOME": str(tmp_path / "data")}.items():
            monkeypatch.setenv(name, value)
        served.pypi("clock-server", "1.0.0")
        yield served


@pytest.mark.covers("add")
@pytest.mark.skipif(not possible().ports, reason="this kernel's Landlock has no TCP ports")
async def test_an_mcp_server_is_added_to_the_file_updated_and_removed(
    opens: Opens, index: Registries, tmp_path: Path
) -> None:
    prompt = await opens({"good": [str(GOOD)]}, columns=1000)
    before = (tmp_path / "servers.json").read_text()
    await prompt.enters("mcp add clock -- uvx clock-server --zone UTC", "publisher: Ann (as the package says)")
    await prompt.answers("Install it, and add it to servers.json? [y/N]:", "", "Nothing was added")
    assert (tmp_path / "servers.json").read_text() == before
    await prompt.enters("mcp add clock --env API_TOKEN=hunter55 -- uvx clock-server --zone UTC", "network:")
    await prompt.answers("Install it, and add it to servers.json? [y/N]:", "y", "clock: ready")
    await prompt.shows("added clock to")
    await prompt.line()
    await prompt.enters("call words", "\n--zone UTC\n")
    await prompt.enters("mcp list", re.compile(r"clock +clock-server +1\.0\.0 +PyPI +yes"))
    index.pypi("clock-server", "2.0.0", tools=("words", "late"))
    await prompt.enters("mcp update clock", "1.0.0 → 2.0.0")
    await prompt.answers("Install it? [y/N]:", "y", "new tools: late")
    await prompt.answers("Its tools change. Use it? [y/N]:", "y", "updated clock to clock-server 2.0.0")
    await prompt.line()
    await prompt.enters("mcp update clock", "clock-server 2.0.0 is installed already")
    await prompt.enters("mcp remove clock")
    await prompt.answers("Remove clock? [y/N]:", "y", "removed clock from")
    assert json.loads((tmp_path / "servers.json").read_text()) == json.loads(before)
    await prompt.enters("tools clock", "no tools")
    await prompt.quits()
    assert "the configuration has changed" not in prompt.screen.text
    assert "hunter" not in (tmp_path / "a2c-smcp" / "prompt_history").read_text()


async def test_the_error_of_a_server_is_forgotten_once_it_is_ready(opens: Opens, tmp_path: Path) -> None:
    tries = f"import pathlib, sys; tries = pathlib.Path({str(tmp_path / 'tries')!r}); tries.open('a').write('.')"
    fails_first = f"{tries}; len(tries.read_text()) < 3 and sys.exit('no luck today'); {GOOD_INLINE}"  # both eras
    prompt = await opens({"good": ["-c", fails_first]}, columns=1000)
    await prompt.enters("status")
    screen = await prompt.shows(re.compile(r"good +ready +9 +\d"))
    assert "no luck today" not in next(line for line in screen.splitlines()[::-1] if re.match("good +ready", line))
    await prompt.quits()


async def test_missing_arguments_are_asked_for_again_after_wrong_answers(opens: Opens) -> None:
    prompt = await opens({"good": [str(GOOD)]})
    await prompt.enters("call add")
    await prompt.answers("a (integer):", "two", "a must be integer, as JSON")
    await prompt.answers("a (integer):", "2")
    await prompt.answers("b (integer):", "3", "\n5\n")
    await prompt.enters("call add a=1")
    await prompt.asks("b (integer):")
    prompt.types(CTRL_C)
    await prompt.shows("add is not called")
    await prompt.line()


async def test_output_of_other_tasks_does_not_interrupt_the_line(opens: Opens) -> None:
    marker = uuid4().hex
    prompt = await opens({"fine": [str(SERVERS / "naughty.py"), "fine"]}, marker=marker)
    await prompt.begins("call ec")
    for pid in pids_with(marker):
        os.kill(pid, signal.SIGKILL)
    await prompt.shows("fine: backoff")
    await prompt.shows(lambda screen: screen.text.count("fine: ready") == 1)
    await prompt.line("call ec")
    assert not re.search(r"call ec.+", prompt.screen.text)
    prompt.types("ho" + ENTER)
    await prompt.shows("laptop> call echo\n")
    await prompt.enters("status", re.compile(r"fine +ready +1 +1 +1 +[\d.]+ m?s *$", re.MULTILINE))


@pytest.mark.covers("computer-cancel")
async def test_ctrl_c_cancels_the_running_call_and_ctrl_d_leaves_no_process(opens: Opens) -> None:
    marker = uuid4().hex
    prompt = await opens({"good": [str(GOOD)]}, marker=marker)
    await prompt.enters("call slow steps=1000 pause=0.05")
    await prompt.shows(re.compile(r"call slow: \d+\.\d s, \d+ of 1000, step \d+, Ctrl-C"))
    await prompt.begins("a line")
    await prompt.interrupts()
    await prompt.shows("Ctrl-C ends it")
    prompt.types(CTRL_C)
    await prompt.shows("call slow is cancelled")
    await prompt.shows(lambda screen: "Ctrl-C ends it" not in screen.text)
    await prompt.enters("call add a=20 b=22", "\n42\n")
    await prompt.enters("call slow steps=1000 pause=0.05", "Ctrl-C ends it")
    children = pids_with(marker)
    assert children
    await prompt.quits()
    await all_gone([*children, *pids_with(marker)])


@pytest.mark.parametrize("way", ["quit", "SIGTERM"])
async def test_quit_and_signals_end_the_prompt(opens: Opens, way: str) -> None:
    marker = uuid4().hex
    prompt = await opens({"good": [str(GOOD)]}, marker=marker)
    children = pids_with(marker)
    if way == "quit":
        await prompt.enters("quit")
    else:
        prompt.program.process.send_signal(signal.SIGTERM)
    await prompt.ends()
    await all_gone([*children, *pids_with(marker)])


async def test_a_signal_ends_the_prompt_while_a_question_is_open(opens: Opens) -> None:
    prompt = await opens({"asks": [str(GOOD), "stdio", "${input:token}"]}, line=False)
    await prompt.shows("Token: ")
    await eventually(lambda: not prompt.echoes)
    prompt.types("something secret" + ENTER)
    await prompt.line()
    await prompt.enters("inputs clear token")
    await prompt.asks("Token:")
    prompt.program.process.send_signal(signal.SIGTERM)
    await prompt.ends()


async def test_wrong_lines_are_answered_with_what_to_write(opens: Opens) -> None:
    prompt = await opens()
    for line, answer in {
        "frobnicate": "'frobnicate' is no command: help lists them",
        "mcp": "usage: mcp add NAME [-- npx|uvx PACKAGE…], or mcp update",
        "mcp add good": "Say where the MCP server comes from, once.",
        "mcp add x --network api.example:443 -- uvx y": "a sandbox does not tell hosts apart",
        "mcp add x --config y -- uvx y": "--config is for the command line",
        "mcp add x --nonsense": "No such option: --nonsense",
        "mcp update": "has no server that `add` installed",
        "mcp remove nobody": "There is no MCP server 'nobody' in servers.json",
        "mcp start": "usage: mcp start SERVER",
        "logs nowhere": "there is no server 'nowhere'. There are no MCP servers at all.",
        "call nothing": "there is no tool 'nothing': tools lists them",
        "call 'open": "a quotation mark is not closed",
        "inputs set nothing": "there is no input 'nothing': inputs list shows them",
        "y": "no request waited for an answer when this line was begun",
        "approve forget planner": "nothing like that is allowed to planner",
        "history many": "'many' is no number of calls",
    }.items():
        await prompt.enters(line, lambda screen, answer=answer: answer in screen.text.replace("\n", ""))
        await prompt.line()
    await prompt.begins("half a line")
    await prompt.interrupts()
    prompt.types(CTRL_C)
    await prompt.ends()


@pytest.mark.covers("inputs-sources")
async def test_inputs_are_set_and_cleared_and_secrets_are_shown_nowhere(opens: Opens, tmp_path: Path) -> None:
    words = ["-c", f"import sys; print(sys.argv, file=sys.stderr); {GOOD_INLINE}", "${input:token}"]
    prompt = await opens({"asks": words}, line=False)
    await prompt.shows("Token: ")
    await eventually(lambda: not prompt.echoes)
    prompt.types(CTRL_D)
    await prompt.line()
    await prompt.enters("inputs list", re.compile(r"token +not known yet +Token"))
    await prompt.enters("inputs set token")
    await prompt.answers("Token:", "hunter22", "token is set (memory)")
    await prompt.shows("asks: ready")
    await prompt.enters("inputs list", re.compile(r"token +explicit +hidden +Token"))
    await prompt.enters("logs asks", "['-c',")
    await prompt.enters('call add {"a": 1, "b": "hunter22"}', "params/b")
    await prompt.enters("inputs set token hunter22", "the value is asked for, so that it is not seen")
    await prompt.enters("mcp add other -- docker run --api-key hunter55", "docker is not npx or uvx")
    await prompt.line()
    await prompt.enters("inputs clear token", "token is forgotten")
    await prompt.asks("Token:")
    prompt.types(CTRL_C)
    await prompt.shows("asks: failed")
    await prompt.line()
    await prompt.quits()
    shown = [line for line in prompt.screen.lines if "hunter" in line]
    assert all(line.startswith("laptop> ") for line in shown), "only what the owner has typed in the open"
    history = tmp_path / "a2c-smcp" / "prompt_history"
    assert mode_of(history) == 0o600
    assert "hunter" not in history.read_text()
    assert "inputs set token\n" in history.read_text()
    assert "mcp add other -- docker run --api-key" in history.read_text()


async def test_lines_are_remembered_in_the_next_run(opens: Opens) -> None:
    prompt = await opens()
    await prompt.enters("tools", "no tools")
    await prompt.line()
    await prompt.quits()
    prompt = await opens()
    await prompt.begins("x")
    prompt.types(BACKSPACE)
    await prompt.line()
    prompt.types(UP)
    await prompt.line("tools")


async def test_it_ends_with_the_reason_when_its_server_refuses_it(opens: Opens, serve: Any) -> None:
    server = await serve(auth=DefaultAuthenticationProvider("the right key"))
    prompt = await opens(url=server.url, line=False)
    assert await prompt.exit_code() == 1
    assert prompt.echoes
    await prompt.shows("does not accept this key, or wants one")


# Approvals

SURE = re.compile(r"is that what you want\? \[y/N\]:$")


@pytest.mark.covers("prompt-approvals")
async def test_a_call_of_an_agent_runs_when_the_owner_says_yes_and_not_when_he_says_no(
    opens: Opens, planner: AsyncSMCPAgentClient, office: str
) -> None:
    prompt = await opens({"good": [str(GOOD)]})
    call = await asks(planner, a=40, b=2)
    await prompt.shows(f'#1 planner in {office} wants add of good\n  {{"a": 40, "b": 2}}')
    await prompt.shows(
        "the tool does not say what it does\n  ! This agent has called nothing here before.\n  y / n / always"
    )
    await prompt.shows(re.compile(r"\n#1 .*: y / n / always tool 1h"))
    await prompt.enters("y")
    assert (await call).text == "42"
    await prompt.shows(lambda screen: not re.search(r"\n#1 .*: y / n", screen.text))
    with pytest.raises(ApprovalRefused):
        await prompt.decides(await asks(planner, a=1, b=1), "#2 planner", "n")


@pytest.mark.covers("prompt-approvals")
async def test_always_tool_is_remembered_in_the_next_run_and_can_be_revoked(
    opens: Opens, planner: AsyncSMCPAgentClient, tmp_path: Path
) -> None:
    prompt = await opens({"good": [str(GOOD)]})
    calls = [await asks(planner), await asks(planner)]
    await prompt.shows("#2 planner")
    await prompt.enters("always tool good")
    assert [(await call).text for call in calls] == ["3", "3"]
    await prompt.shows("planner may use add of good without asking; `approve forget planner` takes that back")
    assert kept(tmp_path) == [["planner", "good", "add"]]
    with pytest.raises(ApprovalRefused):
        await prompt.decides(await asks(planner, "big", size=3), "wants big of good", "n")
    await prompt.quits()
    prompt = await opens({"good": [str(GOOD)]})
    assert (await prompt.result(await asks(planner))).text == "3"
    prompt.types("approve forget " + TAB)
    await prompt.line("approve forget planner")
    prompt.types(ENTER)
    await prompt.shows("no longer: planner may use add of good without asking")
    assert kept(tmp_path) == []
    assert (await prompt.decides(await asks(planner), "#1 planner", "y")).text == "3"


@pytest.mark.covers("prompt-approvals")
async def test_what_was_usual_and_when_a_grant_was_used_is_known_in_the_next_run(
    opens: Opens, planner: AsyncSMCPAgentClient, tmp_path: Path
) -> None:
    prompt = await opens({"good": [str(GOOD)]})
    call = await asks(planner)
    await prompt.shows("! This agent has called nothing here before.")
    await prompt.enters("always server")
    await prompt.answers(SURE, "y", "planner may use every tool of good without asking until 2")
    assert (await call).text == "3"
    await prompt.enters("approve", re.compile(r"planner +good +every tool +20\S+ \S+ +never"))
    assert (await prompt.result(await asks(planner, "big", size=3))).text == "xxx"
    await prompt.enters("approve", re.compile(r"planner +good +every tool +20\S+ \S+ +20\d\d-"))
    await prompt.quits()
    prompt = await opens({"good": [str(GOOD)]})
    await prompt.enters("approve", re.compile(r"planner +good +every tool +20\S+ \S+ +20\d\d-"))
    await prompt.shows("joined ")
    await prompt.enters("approve forget planner good", "no longer: planner may use every tool of good")
    call = await asks(planner)
    await prompt.shows(re.compile(r"wants add of good\n[^!]*\n  y / n"))
    await prompt.enters("n")
    with pytest.raises(ApprovalRefused):
        await call


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
    assert (await prompt.decides(await asks(planner), "#1 planner", "always tool")).text == "3"
    await prompt.shows("cannot be used, what you allow lasts until this program ends")
    await prompt.quits()
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
    await prompt.enters("always agent good")
    await prompt.answers(SURE, "n", "nothing was answered to #1")
    await prompt.enters("always agent good")
    await prompt.answers(SURE, "y")
    assert (await call).text == "3"
    assert kept(tmp_path) == [["planner", None, None]]
    assert (await (await asks(planner, "big", size=3))).text == "xxx"
    await prompt.enters("approve", re.compile(r"planner +every server +every tool"))
    await prompt.quits()
    prompt = await opens({"good": [str(GOOD)]}, "--office", f"{office}-2")
    async with AsyncSMCPAgentClient("planner", url=shared_hub.url, office=f"{office}-2") as namesake:
        call = await asks(namesake)
        await prompt.shows(f"#1 planner in {office}-2 wants add of good")
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

    shown = f"#1 planner (claude-desktop) in {office} wants add of good"
    assert (await prompt.decides(calls("claude-desktop"), shown, "always tool good")).text == "3"
    await prompt.shows("planner (claude-desktop) may use add of good without asking; `approve forget 'planner (claude")
    assert kept(tmp_path) == [["planner", "good", "add", "claude-desktop"]]
    assert (await calls("claude-desktop")).text == "3"
    with pytest.raises(ApprovalRefused):
        await prompt.decides(calls("Visual Studio Code"), "#2 planner (Visual Studio Code)", "n")
    assert (await prompt.decides(await asks(planner), "#3 planner in ", "y")).text == "3"
    await prompt.enters("history", re.compile(r"planner \(Visual Studio Code\) +good +add"))
    await prompt.enters("call add a=4 b=5", "\n9\n")
    await prompt.enters("history 1", re.compile(r"you +good +add +done"))
    await prompt.quits()
    prompt = await opens({"good": [str(GOOD)]})
    await prompt.shows(f"joined {office}")
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
    await prompt.begins("y")
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
    await prompt.enters("status", "treated as secret of good: --token")
    await prompt.enters("approve", lambda screen: "z" * 700 in screen.text.replace("\n", ""))
    await prompt.enters("n")
    with pytest.raises(ApprovalRefused):
        await call


@pytest.mark.covers("prompt-approvals")
async def test_a_request_opens_the_prompt_while_a_server_still_starts(
    opens: Opens, planner: AsyncSMCPAgentClient
) -> None:
    prompt = await opens({"good": [str(GOOD)], "hangs": HANGS}, line=False)
    await prompt.shows(re.compile(r"good +ready"))
    call = await asks(planner)
    await prompt.shows("#1 planner")
    await prompt.line()
    await prompt.enters("y")
    assert (await call).text == "3"


@pytest.mark.covers("prompt-approvals")
async def test_quitting_withdraws_pending_requests(opens: Opens, planner: AsyncSMCPAgentClient) -> None:
    prompt = await opens({"good": [str(GOOD)]})
    call = await asks(planner, timeout=5)
    await prompt.shows("#1 planner")
    await prompt.enters("quit")
    assert "#1 is withdrawn" in await prompt.ends()
    with pytest.raises(ComputerLeft):
        await call


@pytest.mark.covers("prompt-approvals")
async def test_calls_of_the_owner_and_calls_with_yes_need_no_approval(
    opens: Opens, planner: AsyncSMCPAgentClient
) -> None:
    prompt = await opens({"good": [str(GOOD)]}, "--yes")
    assert (await (await asks(planner))).text == "3"
    await prompt.enters("call add a=1 b=1", "\n2\n")
    assert "wants" not in prompt.screen.text


async def test_with_no_input_there_is_no_prompt_and_ctrl_c_stops_it(opens: Opens) -> None:
    prompt = await opens({"good": [str(GOOD)]}, "--no-input", line=False)
    await prompt.shows(lambda screen: re.search(r"good +ready", screen.text) and "joined" in screen.text)
    prompt.types(CTRL_C)
    assert "laptop>" not in await prompt.ends()


@pytest.mark.covers("computer-freeze")
async def test_the_owner_freezes_it_and_releases_it(opens: Opens, planner: AsyncSMCPAgentClient) -> None:
    prompt = await opens({"good": [str(GOOD)]})
    call = await asks(planner)
    await prompt.shows("wants add of good")
    await prompt.enters("freeze what is this", "nothing is let through until you thaw it")
    with pytest.raises(CallFrozen, match="what is this"):
        await call
    await prompt.shows(re.compile(r"frozen since \S+ \S+ \(prompt\): what is this; thaw releases it"))
    with pytest.raises(Frozen):
        await planner.emit_tool_call("laptop", "add", {"a": 1, "b": 2}, 60)
    await prompt.enters("call add a=1 b=2", "Frozen: its owner has stopped this computer: what is this")
    await prompt.enters("thaw", "requests are let through again")
    await prompt.shows(lambda screen: "thaw releases it" not in screen.text.rpartition("requests are")[2])
    await prompt.enters("call add a=20 b=22", "\n42\n")
    await prompt.enters("thaw", "it is not frozen")
    await prompt.quits()
