"""Many MCP servers under supervision: states, restarts, and that no server harms another."""

from __future__ import annotations

import asyncio
import os
import signal
import tomllib
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.errors import CallTimeout, ConfigError, ServerNotFound
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.mcp_host import failures
from a2c_smcp.mcp_host.config.servers import parse_server
from a2c_smcp.mcp_host.failures import ServerExists, ServerGone, ServerNotReady
from a2c_smcp.mcp_host.limits import HostLimits
from a2c_smcp.mcp_host.manager import Manager
from a2c_smcp.mcp_host.sessions import sdk_client
from a2c_smcp.mcp_host.sessions.tool_request import ToolRequest
from a2c_smcp.mcp_host.status import Recovery, Restarts
from tests.computer.pace import within
from tests.computer.supervised import (
    command_of,
    good,
    is_alive,
    managed,
    naughty,
    of_the_sdk,
    quick,
    serving,
    text_of,
)

pytestmark = pytest.mark.covers("supervise-restart", "supervise-states")

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
MISSING = parse_server({"name": "missing", "command": "no-such-program"})


def pid_of(manager: Manager, name: str) -> int:
    return int(str(manager.status()[name].diagnostics["pid"]))


def calls(manager: Manager, name: str, tool: str, timeout: float = 60, **params: Any) -> Coroutine[Any, Any, Any]:
    return manager[name].requests.call_tool(ToolRequest(tool, params, timeout))


async def echo(manager: Manager, name: str) -> str:
    return text_of(await calls(manager, name, "echo", to=name))


def test_an_unknown_version_of_the_sdk_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its inner modules, which are used, may have changed."""
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    assert sdk_client.KNOWN_SDK in extras["computer"]
    monkeypatch.setattr(sdk_client, "version", lambda _: "2.4.0")
    with pytest.raises(ConfigError, match=r"mcp 2\.4\.0"):
        Manager()


async def test_each_state_of_a_server_is_reported_once() -> None:
    async with managed(naughty(), naughty("exits", name="off", disabled=True)) as (manager, changes, events):
        assert await manager.start() == {"fine": "ready", "off": "disabled"}
        assert manager.status()["off"].state == "disabled"
        assert manager.status()["fine"].revision == "2025-11-25"
        assert [tool["name"] for tool in manager["fine"].tools] == ["echo"]
        await manager.stop("fine")
        assert manager["fine"].tools == []
        assert await manager.start("fine") == {"fine": "ready"}
    assert changes.entries == [("fine", state, "") for state in ("starting", "ready", "stopped") * 2]
    assert len(events.of("fine", "tools_changed", None)) == 4


@pytest.mark.covers("mcp-eras")
async def test_an_owner_has_a_server_spoken_to_in_an_older_revision() -> None:
    servers = of_the_sdk(name="newest"), of_the_sdk(name="older", protocol="older")
    async with managed(*servers) as (manager, _, _):
        assert await manager.start() == {"newest": "ready", "older": "ready"}
        assert [status.revision for status in manager.status().values()] == ["2026-07-28", "2025-11-25"]


async def test_a_missing_command_is_a_failed_server_at_once_and_is_tried_again_after_a_long_pause() -> None:
    async with managed(MISSING, policy=quick(failed_pause=0.1)) as (manager, changes, _):
        status = manager.status()["missing"]
        assert (status.state, status.starts) == ("failed", 1)
        assert "'no-such-program' is not on PATH" in status.reason
        with pytest.raises(ServerNotReady, match="'missing' is failed"):
            await calls(manager, "missing", "x")
        await changes.until(lambda _: len(changes.of("missing", "failed")) == 3)


async def test_servers_are_added_replaced_and_removed_while_others_run() -> None:
    async with managed(naughty()) as (manager, _, _events):
        pid = pid_of(manager, "fine")
        manager.add(naughty(name="second"))
        with pytest.raises(ServerExists):
            manager.add(naughty(name="second"))
        assert await manager.start("second") == {"second": "ready"}
        assert await manager.replace(naughty("many_tools", name="second"))
        await manager.start("second")
        assert len(manager["second"].tools) == 1000
        assert not await manager.replace(naughty("many_tools", name="second", disabled=True))
        assert manager.status()["second"].state == "disabled"
        await manager.remove("second")
        assert list(manager) == ["fine"]
        with pytest.raises(ServerNotFound):
            await manager["second"].start()
        assert pid_of(manager, "fine") == pid


@pytest.mark.covers("supervise-isolation")
async def test_five_good_servers_are_ready_within_five_seconds_among_five_bad_ones() -> None:
    bad = [naughty(mode) for mode in ("exits", "hangs_at_initialize", "hangs_at_list", "updates")] + [MISSING]
    fine = [naughty(name=f"fine-{number}") for number in range(5)]
    async with managed(*bad, *fine, policy=HostLimits(), start=False) as (manager, changes, _):
        starting = asyncio.create_task(manager.start())
        with within(5):
            await changes.until(lambda told: sum(state == "ready" for name, state, _ in told if "fine" in name) == 5)
        answers = await asyncio.gather(*(echo(manager, config.name) for config in fine))
        assert answers == [f'{{"to": "{config.name}"}}' for config in fine]
        starting.cancel()


@pytest.mark.covers("supervise-isolation")
async def test_few_servers_start_at_once_and_a_slow_one_gives_its_slot_away() -> None:
    hanging = [naughty("hangs_at_initialize", name=f"hangs-{number}") for number in range(2)]
    policy = quick(starting_at_once=2, start_turn=0.3)
    async with managed(*hanging, naughty(), policy=policy, start=False) as (manager, changes, _):
        starting = asyncio.create_task(manager.start())
        await changes.until(lambda _: changes.of("fine", "ready"))
        assert manager.status()["hangs-0"].state == "starting"
        starting.cancel()


async def test_a_killed_server_fails_its_calls_at_once_keeps_its_tools_and_is_back_soon() -> None:
    async with managed(naughty(), policy=HostLimits()) as (manager, changes, events):
        before = pid_of(manager, "fine")
        call = asyncio.create_task(calls(manager, "fine", "never", 30))
        await echo(manager, "fine")
        events.entries.clear()
        with within(3):
            os.kill(before, signal.SIGKILL)
            with within(1), pytest.raises(ServerGone, match="killed by SIGKILL"):
                await call
            assert (manager["fine"].state, len(manager["fine"].tools)) == ("backoff", 1)
            assert await echo(manager, "fine")  # it waits
        assert pid_of(manager, "fine") != before
        assert not events.of("fine", "tools_changed")
        assert len(events.of("fine", "windows_changed")) == 2
        assert [state for _, state, _ in changes.entries][-4:] == ["ready", "backoff", "starting", "ready"]


async def test_a_call_waits_for_a_restart_only_so_long_and_says_what_to_do(tmp_path: Path) -> None:
    """The second start hangs."""
    begun, (program, *words) = tmp_path / "begun", command_of("naughty.py", "fine")
    line = f'[ -e "{begun}" ] && exec sleep 600; touch "{begun}"; exec "$@"'
    config = {"command": "sh", "args": ["-c", line, "sh", program, *words]}
    server = parse_server({"name": "fine", "server_parameters": config})
    async with managed(server, policy=quick(restart_wait=0.5)) as (manager, changes, _):
        os.kill(pid_of(manager, "fine"), signal.SIGKILL)
        await changes.until(lambda _: len(changes.of("fine", "starting")) == 2)
        assert len(manager["fine"].tools) == 1
        with within(5), pytest.raises(CallTimeout, match="'fine' is restarting: call it again"):
            await echo(manager, "fine")
        await manager.stop("fine")
        assert manager["fine"].tools == []
        with within(5), pytest.raises(ServerNotReady, match="'fine' is stopped"):
            await echo(manager, "fine")


async def test_a_server_that_keeps_failing_is_given_up_with_the_reason_until_asked_again() -> None:
    async with managed(naughty("exits"), policy=quick(first_pause=0.01)) as (manager, changes, _):
        await changes.until(lambda _: changes.of("exits", "failed"))
        status = manager.status()["exits"]
        assert "exited with code 7: I do not feel like it" in status.reason
        assert status.starts == 6
        assert status.diagnostics["exit_code"] == 7
        assert await manager.start("exits") == {"exits": "backoff"}
        await manager.stop("exits")
        assert manager.status()["exits"].state == "stopped"


@pytest.mark.covers("mcp-eras")
async def test_a_server_that_dies_of_the_probe_gets_it_only_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with managed(naughty("dies_at_discover")) as (manager, changes, _):
        await manager.stop("dies_at_discover")
        await manager.start("dies_at_discover")
        os.kill(pid_of(manager, "dies_at_discover"), signal.SIGKILL)
        await changes.until(lambda _: len(changes.of("dies_at_discover", "ready")) == 3)
    assert caplog.text.count("ended at the probe of the newer protocol") == 1


def test_pauses_double_up_to_a_limit_and_end_in_failure() -> None:
    policy = HostLimits(jitter=0.0)
    restarts = Restarts(policy)
    gone = ServerGone()
    pauses = [restarts.after(gone, ready_for=0, now=float(now)) for now in range(6)]
    assert pauses == [Recovery("backoff", pause) for pause in (1, 2, 4, 8, 16)] + [Recovery("failed", 300)]
    rare = Restarts(policy)
    slowly = [rare.after(gone, ready_for=0, now=100.0 * now).pause for now in range(8)]
    assert slowly == [1, 2, 4, 8, 16, 32, 60, 60]
    assert rare.after(gone, ready_for=61, now=1000.0).pause == 1


def test_pauses_are_jittered() -> None:
    pauses = {Restarts(HostLimits()).after(ServerGone(), ready_for=0, now=0).pause for _ in range(50)}
    assert len(pauses) > 10
    assert all(pause is not None and 0.8 <= pause <= 1.2 for pause in pauses)


def test_some_failures_cause_no_restart() -> None:
    restarts = Restarts(HostLimits())
    assert restarts.after(failures.AuthRequired(), ready_for=0, now=0) == Recovery("auth_required", None)
    assert restarts.after(failures.CommandNotFound(), ready_for=0, now=0) == Recovery("failed", 300)
    assert restarts.after(failures.SessionLost(), ready_for=5, now=0) == Recovery("backoff", 0)


def _at(port: int, **parameters: Any) -> Any:
    return parse_server({"name": "web", "type": "streamable", "url": f"http://127.0.0.1:{port}/mcp", **parameters})


async def test_a_refused_credential_causes_no_restart() -> None:
    with serving(token="sesame") as (port, _):
        async with managed(_at(port)) as (manager, _changes, _events):
            assert manager.status()["web"].state == "auth_required"
            assert "HTTP 401" in manager.status()["web"].reason
            assert await manager.start("web") == {"web": "auth_required"}
            assert manager.status()["web"].starts == 2
            assert await manager.replace(_at(port, headers={"Authorization": "Bearer sesame"}))
            assert await manager.start("web") == {"web": "ready"}


async def test_a_web_server_that_is_back_is_used_again_and_its_changes_are_reported() -> None:
    async with AsyncExitStack() as later:
        with serving() as (port, _):
            manager, changes, events = await later.enter_async_context(managed(_at(port)))
            events.entries.clear()
        await events.until(lambda _: events.of("web", "windows_changed"))
        assert manager.status()["web"].state in ("backoff", "starting")
        with serving(port=port):
            await changes.until(lambda _: len(changes.of("web", "ready")) == 2)
            listed = [kind for _, kind, _ in events.entries if kind in ("tools_changed", "windows_changed")]
            assert listed == ["windows_changed"] * 2
            assert {"prompts_changed", "resource_list_changed"} <= {kind for _, kind, _ in events.entries}


async def test_a_forgotten_session_is_opened_again_and_only_changes_are_reported() -> None:
    async with AsyncExitStack() as later:
        with serving(token="older") as (port, _):
            manager, changes, events = await later.enter_async_context(managed(_at(port)))
            assert manager.status()["web"].revision == "2025-11-25"
            await calls(manager, "web", "add", a=1, b=1)
            events.entries.clear()
        with serving(token="older", port=port):
            await changes.until(lambda _: len(changes.of("web", "ready")) == 2)
            assert "ended the session" in changes.of("web", "backoff")[0][2]
            assert {kind for _, kind, _ in events.entries} == {"resource_list_changed", "prompts_changed"}
            await calls(manager, "web", "add", a=1, b=1)


async def test_a_silent_server_is_restarted_after_calls_that_time_out() -> None:
    async with managed(naughty()) as (manager, changes, _):
        await calls(manager, "fine", "mute")
        for _ in range(3):
            with pytest.raises(CallTimeout):
                await calls(manager, "fine", "echo", 0.1)
        await changes.until(lambda _: len(changes.of("fine", "ready")) == 2)
        assert await echo(manager, "fine")


async def test_slow_tools_of_a_healthy_server_do_not_restart_it() -> None:
    async with managed(naughty()) as (manager, changes, _):
        before = pid_of(manager, "fine")
        for _ in range(4):
            with pytest.raises(CallTimeout):
                await calls(manager, "fine", "never", 0.05)
        assert await echo(manager, "fine")
        assert pid_of(manager, "fine") == before
        assert len(changes.entries) == 2


@pytest.mark.covers("supervise-idle-stop")
async def test_an_unused_server_is_stopped_keeps_its_tools_and_starts_with_the_next_call() -> None:
    async with managed(naughty(), policy=quick(idle_stop=0.3)) as (manager, changes, events):
        pid = pid_of(manager, "fine")
        await changes.until(lambda _: changes.of("fine", "asleep"))
        assert [tool["name"] for tool in manager["fine"].tools] == ["echo"]
        events.entries.clear()
        assert await asyncio.gather(*(echo(manager, "fine") for _ in range(3)))
        assert not is_alive(pid)
        assert manager.status()["fine"].state == "ready"
        assert not events.entries, "its lists are as they were"
        await changes.until(lambda _: len(changes.of("fine", "asleep")) == 2)
        assert await manager.start("fine") == {"fine": "ready"}


@pytest.mark.covers("supervise-idle-stop")
async def test_a_server_with_a_call_in_flight_is_not_idle() -> None:
    async with managed(naughty(), policy=quick(idle_stop=0.2)) as (manager, changes, _):
        await calls(manager, "fine", "progress", steps=6, pause=0.1)
        assert not changes.of("fine", "asleep")


@pytest.mark.covers("supervise-isolation")
async def test_calls_of_one_server_are_limited_and_waiting_counts_in_their_timeout() -> None:
    async with managed(naughty(), policy=quick(calls_at_once=1)) as (manager, _, _events):
        blocking = asyncio.create_task(calls(manager, "fine", "never", 30))
        await asyncio.sleep(0)
        with pytest.raises(CallTimeout, match="had no time for it"):
            await calls(manager, "fine", "echo", 0.2)
        await cancel_and_wait(blocking)
        assert await echo(manager, "fine")


@pytest.mark.covers("supervise-orphans")
async def test_everything_stops_at_once_within_five_seconds(tmp_path: Path) -> None:
    modes = ["ignores_sigterm", "ignores_eof", "grandchild_orphaned", "updates", "fine"]
    stubborn = [naughty(mode, tmp_path / "pids", name=f"{mode}-{n}") for n in range(2) for mode in modes]
    async with managed(*stubborn, good()) as (manager, _, _events):
        pids = [pid_of(manager, name) for name in manager]
        with within(5):
            await manager.stop()
    assert not any(is_alive(pid) for pid in pids)


async def test_a_server_can_be_stopped_while_it_is_starting() -> None:
    async with managed(naughty("hangs_at_initialize"), start=False) as (manager, changes, _):
        starting = asyncio.create_task(manager.start("hangs_at_initialize"))
        await changes.until(lambda told: told)
        with within(5):
            await manager.stop("hangs_at_initialize")
        assert await starting == {"hangs_at_initialize": "stopped"}


@pytest.mark.covers("supervise-orphans")
async def test_the_next_start_waits_for_a_stop_whose_caller_was_cancelled() -> None:
    async with managed(naughty("ignores_eof")) as (manager, changes, _):
        pid = pid_of(manager, "ignores_eof")
        stopping = asyncio.create_task(manager.stop("ignores_eof"))
        await asyncio.wait([stopping], timeout=0.1)
        await cancel_and_wait(stopping)
        assert await manager.start("ignores_eof") == {"ignores_eof": "ready"}
        assert not is_alive(pid)
        assert pid_of(manager, "ignores_eof") != pid
        assert [state for _, state, _ in changes.entries][:3] == ["starting", "ready", "starting"]
