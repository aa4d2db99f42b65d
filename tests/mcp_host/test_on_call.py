"""MCP servers that start on call: listed as they were seen last, and started by their first use."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.errors import CallTimeout, CapabilityNotSupported
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.mcp_host.config.servers import MCPServerConfig, parse_server, source
from a2c_smcp.mcp_host.failures import ServerNotReady
from a2c_smcp.mcp_host.manager import Manager
from a2c_smcp.mcp_host.sessions.tool_request import ReadRequest, ToolRequest
from tests.computer.supervised import all_gone, command_of, managed, pids_in, quick, reading, script, text_of
from tests.mcp_host.scripts import call as asking
from tests.mcp_host.scripts import finished, form

pytestmark = pytest.mark.covers("supervise-on-call")

SLEEPY = quick(idle_stop=0.2)
WINDOW = "window://naughty/clock"


class Counted:
    """A server over stdio that starts on call. Each of its processes writes its id into a file."""

    def __init__(self, folder: Path, *words: object, file: str = "naughty.py") -> None:
        self.state, self._file = folder / "state", folder / "pids"
        self.words = [str(word) for word in (words or ("fine",))]
        self.file = file

    @property
    def pids(self) -> list[int]:
        return pids_in(self._file)

    def config(self, **more: Any) -> MCPServerConfig:
        args = ["-c", f'echo $$ >>"{self._file}"; exec "$@"', "sh", *command_of(self.file, *self.words)]
        return parse_server({"name": "fine", "start": "on_call", "command": "sh", "args": args, **more})

    def managed(self, policy: Any = SLEEPY, **more: Any) -> Any:
        return managed(self.config(**more), policy=policy, state=self.state)

    async def seen(self, **more: Any) -> None:
        """It has been started once, and sleeps."""
        async with self.managed(**more) as (_, changes, _events):
            await changes.until(lambda _: changes.of("fine", "asleep"))
        assert len(self.pids) == 1


@pytest.fixture
def server(tmp_path: Path) -> Counted:
    return Counted(tmp_path)


def call(manager: Manager, tool: str = "pid", **params: Any) -> Any:
    return manager["fine"].requests.call_tool(ToolRequest(tool, params, 60))


async def test_a_server_that_was_seen_is_listed_asleep_and_many_first_calls_start_one_process(server: Counted) -> None:
    await server.seen()
    async with server.managed() as (manager, changes, events):
        status = manager.status()["fine"]
        assert (status.state, status.reason, status.tools) == ("asleep", "starts with the next call", 1)
        assert (status.windows, status.revision, status.starts) == (1, "2025-11-25", 0)
        assert [tool["name"] for tool in manager["fine"].tools] == ["echo"]
        assert manager["fine"].about.declares("resources")
        assert len(server.pids) == 1
        events.entries.clear()
        answers = await asyncio.gather(*(call(manager) for _ in range(20)))
        assert {text_of(answer) for answer in answers} == {str(server.pids[1])}
        assert len(server.pids) == 2
        await changes.until(lambda _: len(changes.of("fine", "asleep")) == 2)
        assert not events.entries, "nothing has changed"
        await all_gone(server.pids)
    assert [state for _, state, _ in changes.entries[:4]] == ["starting", "asleep", "starting", "ready"]


async def test_a_server_that_was_never_seen_is_started_once_to_see(server: Counted) -> None:
    async with server.managed() as (manager, changes, _):
        assert manager["fine"].state == "ready"
        await changes.until(lambda _: changes.of("fine", "asleep"))
        assert manager.status()["fine"].tools == 1
    assert len(server.pids) == 1


def _prompt(name: str) -> ReadRequest:
    return ReadRequest("prompts/get", {"name": name, "arguments": {"who": "Ann"}}, 60)


USES: dict[str, Callable[[Manager], Awaitable[Any]]] = {
    "a call": call,
    "a read": lambda manager: manager["fine"].requests.read(reading(WINDOW)),
    "a subscription": lambda manager: manager["fine"].subscribe(WINDOW, 60),
    "a start by its owner": lambda manager: manager.start("fine"),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
async def test_each_kind_of_use_starts_it(server: Counted, use: Callable[[Manager], Awaitable[Any]]) -> None:
    await server.seen()
    async with server.managed() as (manager, _, _events):
        assert manager["fine"].state == "asleep"
        await use(manager)
        assert manager["fine"].state == "ready"
        assert len(server.pids) == 2


async def test_its_lists_start_nothing_and_its_prompts_and_completions_do(tmp_path: Path) -> None:
    server = Counted(tmp_path, "older", tmp_path / "notes", file="library.py")
    await server.seen()
    lists = [ReadRequest(f"{name}/list", {}, 60) for name in ("resources", "resources/templates", "prompts")]
    async with server.managed() as (manager, changes, _):
        requests = manager["fine"].requests
        asleep = [await requests.read(each) for each in lists]
        assert manager["fine"].state == "asleep"
        assert len(server.pids) == 1
        await requests.read(_prompt("greet"))
        assert asleep == [await requests.read(each) for each in lists]
        assert len(server.pids) == 2
        assert asleep[2]["prompts"][0]["name"] == "greet"
        await changes.until(lambda _: len(changes.of("fine", "asleep")) == 2)
        reference = {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "who", "value": ""}}
        await requests.read(ReadRequest("completion/complete", reference, 60))
        assert len(server.pids) == 3


async def test_what_it_does_not_offer_is_refused_without_a_start(server: Counted) -> None:
    await server.seen()
    async with server.managed() as (manager, _, _events):
        with pytest.raises(CapabilityNotSupported):
            await manager["fine"].requests.read(ReadRequest("prompts/list", {}, 60))
        with pytest.raises(CapabilityNotSupported):
            await manager["fine"].requests.read(_prompt("greet"))
        assert len(server.pids) == 1


# Identity


OTHERS: dict[str, dict[str, Any]] = {
    "another argument": {"args": ["-c", "exit 7"]},
    "another program": {"command": "dash"},
    "another variable": {"env": {"TOKEN": "s3cret"}},
    "another folder": {"cwd": "/"},
    "a sandbox": {"sandbox": {"network": True}},
    "an older revision": {"protocol": "older"},
    "other windows": {"desktop": "any"},
    "an address": {"type": "sse", "url": "http://127.0.0.1:9/sse", "args": None, "command": None},
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
async def test_a_server_of_the_same_name_that_is_another_has_nothing_that_was_seen(
    server: Counted, other: dict[str, Any]
) -> None:
    await server.seen()
    fields = {**source(server.config())["server_parameters"], **other}
    given = {key: value for key, value in fields.items() if value is not None}
    config = parse_server({"name": "fine", "start": "on_call", **given})
    async with managed(config, policy=SLEEPY, state=server.state, start=False) as (manager, changes, _):
        starting = asyncio.create_task(manager.start())
        await changes.until(lambda _: [each for each in changes.entries if each[1] != "starting"])
        assert changes.entries[1][1] != "asleep"
        assert manager.status()["fine"].starts == 1
        await cancel_and_wait(starting)


async def test_a_program_that_was_replaced_is_another_server_and_a_value_of_a_variable_is_no_part_of_it(
    tmp_path: Path,
) -> None:
    server = Counted(tmp_path)
    await server.seen(env={"TOKEN": "s3cret-1"})
    async with server.managed(env={"TOKEN": "s3cret-2"}) as (manager, _, _events):
        assert manager["fine"].state == "asleep"
    [kept] = (server.state / "seen").iterdir()
    assert "s3cret" not in kept.read_text()
    assert kept.stat().st_mode & 0o777 == 0o600
    program = tmp_path / "program.py"
    server.words.append(str(program))
    program.write_text("1")
    for version in ("2", "22"):
        async with server.managed() as (manager, changes, _):
            assert manager["fine"].state == "ready"
            await changes.until(lambda _: changes.of("fine", "asleep"))
        program.write_text(version)


@pytest.mark.parametrize("damage", ["{", "[]", '{"identity": 1}', "wrong lists"])
async def test_a_damaged_file_costs_a_start_and_no_more(server: Counted, damage: str) -> None:
    await server.seen()
    [kept] = (server.state / "seen").iterdir()
    if damage == "wrong lists":
        damage = json.dumps({**json.loads(kept.read_text()), "pages": {"prompts/list": {"": []}}})
    kept.write_text(damage)
    async with server.managed() as (manager, changes, _):
        assert manager["fine"].state == "ready"
        await changes.until(lambda _: changes.of("fine", "asleep"))
    assert json.loads(kept.read_text())["tools"][0]["name"] == "echo"


# Starts and ends


async def test_the_cancel_of_the_first_call_leaves_the_start_to_the_others(server: Counted) -> None:
    await server.seen()
    async with server.managed() as (manager, changes, _):
        first = asyncio.create_task(call(manager))
        await changes.until(lambda _: len(changes.of("fine", "starting")) == 2)
        second = asyncio.create_task(call(manager))
        await cancel_and_wait(first)
        assert text_of(await second) == str(server.pids[1])
        assert len(server.pids) == 2


async def test_a_failing_start_answers_the_first_calls_with_its_reason_and_is_tried_again(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    server = Counted(tmp_path, "waits_for", gate)
    gate.write_text("on")
    await server.seen()
    async with server.managed(policy=quick(idle_stop=0.2, first_pause=0.5)) as (manager, changes, _):
        gate.unlink()
        calls = [asyncio.create_task(call(manager)) for _ in range(3)]
        await changes.until(lambda _: len(changes.of("fine", "starting")) == 2)
        gate.write_text("exit")
        for each in calls:
            with pytest.raises(ServerNotReady, match=r"'fine' is backoff \(.*exited with code 7"):
                await each
        gate.write_text("on")
        assert [tool["name"] for tool in manager["fine"].tools] == ["echo"]
        assert text_of(await call(manager)) == str(server.pids[-1])


async def test_it_does_not_sleep_while_it_is_followed_or_asked(tmp_path: Path) -> None:
    server = Counted(tmp_path)
    await server.seen()
    async with server.managed() as (manager, changes, _):
        await manager["fine"].subscribe(WINDOW, 60)
        await call(manager, "progress", steps=5, pause=0.1)
        assert len(changes.of("fine", "asleep")) == 1
        await manager.unsubscribe("fine", WINDOW)
        await changes.until(lambda _: len(changes.of("fine", "asleep")) == 2)


ASKS = {"result": {"resultType": "input_required", "inputRequests": {"name": form()}, "requestState": "s"}}


async def test_it_does_not_sleep_while_a_question_that_ended_a_call_is_open(tmp_path: Path) -> None:
    server = Counted(tmp_path, "modern", file="scripted.py")
    async with server.managed(policy=quick(idle_stop=0.1, question_limit=600.0)) as (manager, changes, _):
        requests = manager["fine"].requests
        asked = await requests.call_tool(asking("plain", ASKS, key="one", input_as_result=True))
        assert asked["requestState"] == "s"
        assert requests.is_busy
        with pytest.raises(CallTimeout):
            await requests.call_tool(asking("plain", {"silent": 1}, key="two", timeout=0.4))
        assert not changes.of("fine", "asleep")
        await requests.call_tool(asking("plain", finished(), key="three", input_responses={}, request_state="s"))
        await changes.until(lambda _: changes.of("fine", "asleep"))


async def test_a_question_that_nobody_answers_keeps_it_awake_for_a_time_only(tmp_path: Path) -> None:
    server = Counted(tmp_path, "modern", file="scripted.py")
    async with server.managed(policy=quick(idle_stop=0.1, question_limit=0.2)) as (manager, changes, _):
        await manager["fine"].requests.call_tool(asking("plain", ASKS, input_as_result=True))
        await changes.until(lambda _: changes.of("fine", "asleep"))


async def test_a_field_of_the_server_says_when_it_sleeps_whatever_the_option_says(server: Counted) -> None:
    async with server.managed(policy=quick(idle_stop=None), idle_stop=0.1) as (_, changes, _events):
        await changes.until(lambda _: changes.of("fine", "asleep"))
    always = server.config(start="always", idle_stop=0.1)
    async with managed(always, policy=quick(), state=server.state) as (manager, changes, _):
        assert manager["fine"].state == "ready"
        await changes.until(lambda _: changes.of("fine", "asleep"))


async def test_a_server_that_crashes_is_restarted_as_ever_and_its_lists_stay(server: Counted) -> None:
    await server.seen()
    async with server.managed(policy=quick(idle_stop=30.0)) as (manager, changes, events):
        await call(manager)
        events.entries.clear()
        os.kill(server.pids[1], signal.SIGKILL)
        await changes.until(lambda _: len(changes.of("fine", "ready")) == 2)
        assert text_of(await call(manager)) == str(server.pids[2])
        assert not events.of("fine", "tools_changed")


async def test_lists_that_have_changed_meanwhile_are_announced_after_the_start(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    server = Counted(tmp_path, "older", notes, file="library.py")
    await server.seen()
    [kept] = (server.state / "seen").iterdir()
    before = json.loads(kept.read_text())
    before["pages"]["prompts/list"][""]["prompts"] = []
    kept.write_text(json.dumps(before))
    async with server.managed() as (manager, _, events):
        page = await manager["fine"].requests.read(ReadRequest("prompts/list", {}, 60))
        assert page["prompts"] == []
        await manager.start("fine")
        await events.until(lambda _: events.of("fine", "prompts_changed"))
        assert not events.of("fine", "resource_list_changed")


def test_the_field_has_two_words() -> None:
    assert script("naughty.py", "fine").start == "always"
