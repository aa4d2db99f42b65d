"""Many MCP servers under supervision: states, restarts, and that no server harms another."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.errors import CallTimeout, ServerNotFound
from a2c_smcp.mcp_host.config.servers import parse_server
from a2c_smcp.mcp_host.failures import (
    AuthRequired,
    CommandNotFound,
    ServerExists,
    ServerGone,
    ServerNotReady,
    SessionLost,
)
from a2c_smcp.mcp_host.manager import Manager
from a2c_smcp.mcp_host.policy import HostPolicy
from a2c_smcp.mcp_host.sessions.tool_request import ToolRequest
from a2c_smcp.mcp_host.status import Recovery, Restarts
from tests.computer.pace import within
from tests.computer.supervised import good, is_alive, managed, naughty, of_the_sdk, quick, serving, text_of

MISSING = parse_server({"name": "missing", "command": "no-such-program"})


def pid_of(manager: Manager, name: str) -> int:
    return int(str(manager.status()[name].diagnostics["pid"]))


async def echo(manager: Manager, name: str) -> str:
    return text_of(await manager.call_tool(name, ToolRequest("echo", {"to": name}, 60)))


@pytest.mark.covers("supervise-states")
async def test_each_state_of_a_server_is_reported_once() -> None:
    async with managed(naughty(), naughty("exits", name="off", disabled=True)) as (manager, changes, events):
        assert await manager.start() == {"fine": "ready", "off": "disabled"}
        assert manager.status()["off"].state == "disabled"
        assert manager.status()["fine"].revision == "2025-11-25"
        assert [tool["name"] for tool in manager.tools("fine")] == ["echo"]
        await manager.stop("fine")
        assert manager.tools("fine") == []
        assert await manager.start("fine") == {"fine": "ready"}
    assert changes.entries == [
        ("fine", "starting", ""),
        ("fine", "ready", ""),
        ("fine", "stopped", ""),
        ("fine", "starting", ""),
        ("fine", "ready", ""),
        ("fine", "stopped", ""),
    ]
    assert len(events.of("fine", "tools_changed", None)) == 4


@pytest.mark.covers("mcp-eras")
async def test_an_owner_has_a_server_spoken_to_in_an_older_revision() -> None:
    servers = of_the_sdk(name="newest"), of_the_sdk(name="older", protocol="older")
    async with managed(*servers) as (manager, _, _):
        assert await manager.start() == {"newest": "ready", "older": "ready"}
        assert [status.revision for status in manager.status().values()] == ["2026-07-28", "2025-11-25"]


@pytest.mark.covers("supervise-states")
async def test_a_missing_command_is_a_failed_server_at_once() -> None:
    async with managed(MISSING) as (manager, _, _events):
        status = manager.status()["missing"]
        assert (status.state, status.starts) == ("failed", 1)
        assert "'no-such-program' is not on PATH" in status.reason
        with pytest.raises(ServerNotReady, match="'missing' is failed"):
            await manager.call_tool("missing", ToolRequest("x", {}, 60))


@pytest.mark.covers("supervise-states")
async def test_servers_are_added_replaced_and_removed_while_others_run() -> None:
    async with managed(naughty()) as (manager, _, _events):
        pid = pid_of(manager, "fine")
        manager.add(naughty(name="second"))
        with pytest.raises(ServerExists):
            manager.add(naughty(name="second"))
        assert await manager.start("second") == {"second": "ready"}
        assert await manager.replace(naughty("many_tools", name="second"))
        await manager.start("second")
        assert len(manager.tools("second")) == 1000
        assert not await manager.replace(naughty("many_tools", name="second", disabled=True))
        assert manager.status()["second"].state == "disabled"
        await manager.remove("second")
        assert list(manager) == ["fine"]
        with pytest.raises(ServerNotFound):
            manager.tools("second")
        assert pid_of(manager, "fine") == pid


@pytest.mark.covers("supervise-isolation", "supervise-states")
async def test_five_good_servers_are_ready_within_five_seconds_among_five_bad_ones() -> None:
    bad = [naughty(mode) for mode in ("exits", "hangs_at_initialize", "hangs_at_list", "updates")] + [MISSING]
    fine = [naughty(name=f"fine-{number}") for number in range(5)]
    async with managed(*bad, *fine, policy=HostPolicy(), start=False) as (manager, changes, _):
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


@pytest.mark.covers("supervise-restart")
async def test_a_killed_server_fails_its_calls_at_once_and_is_back_soon() -> None:
    async with managed(naughty(), policy=HostPolicy()) as (manager, changes, events):
        before = pid_of(manager, "fine")
        call = asyncio.create_task(manager.call_tool("fine", ToolRequest("never", {}, 30)))
        await echo(manager, "fine")
        events.entries.clear()
        with within(3):
            os.kill(before, signal.SIGKILL)
            with within(1), pytest.raises(ServerGone, match="killed by SIGKILL"):
                await call
            await events.until(lambda _: events.of("fine", "tools_changed"))
            assert manager.tools("fine") == []
            await events.until(lambda _: len(events.of("fine", "tools_changed")) == 2)
        assert await echo(manager, "fine")
        assert pid_of(manager, "fine") != before
        assert len(events.of("fine", "windows_changed")) == 2
        assert [state for _, state, _ in changes.entries][-4:] == ["ready", "backoff", "starting", "ready"]


@pytest.mark.covers("supervise-restart")
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


@pytest.mark.covers("supervise-restart")
async def test_a_failed_server_is_tried_again_after_a_long_pause() -> None:
    async with managed(MISSING, policy=quick(failed_pause=0.1)) as (_, changes, _events):
        await changes.until(lambda _: len(changes.of("missing", "failed")) == 3)


@pytest.mark.covers("supervise-restart")
async def test_a_server_that_dies_of_the_probe_gets_it_only_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with managed(naughty("dies_at_discover")) as (manager, changes, _):
        await manager.stop("dies_at_discover")
        await manager.start("dies_at_discover")
        os.kill(pid_of(manager, "dies_at_discover"), signal.SIGKILL)
        await changes.until(lambda _: len(changes.of("dies_at_discover", "ready")) == 3)
    assert caplog.text.count("ended at the probe of the newer protocol") == 1


@pytest.mark.covers("supervise-restart")
def test_pauses_double_up_to_a_limit_and_end_in_failure() -> None:
    policy = HostPolicy(jitter=0.0)
    restarts = Restarts(policy)
    gone = ServerGone()
    pauses = [restarts.after(gone, ready_for=0, now=float(now)) for now in range(6)]
    assert pauses == [Recovery("backoff", pause) for pause in (1, 2, 4, 8, 16)] + [Recovery("failed", 300)]
    rare = Restarts(policy)
    slowly = [rare.after(gone, ready_for=0, now=100.0 * now).pause for now in range(8)]
    assert slowly == [1, 2, 4, 8, 16, 32, 60, 60]
    assert rare.after(gone, ready_for=61, now=1000.0).pause == 1


@pytest.mark.covers("supervise-restart")
def test_pauses_are_jittered() -> None:
    pauses = {Restarts(HostPolicy()).after(ServerGone(), ready_for=0, now=0).pause for _ in range(50)}
    assert len(pauses) > 10
    assert all(pause is not None and 0.8 <= pause <= 1.2 for pause in pauses)


@pytest.mark.covers("supervise-restart")
def test_some_failures_cause_no_restart() -> None:
    restarts = Restarts(HostPolicy())
    assert restarts.after(AuthRequired(), ready_for=0, now=0) == Recovery("auth_required", None)
    assert restarts.after(CommandNotFound(), ready_for=0, now=0) == Recovery("failed", 300)
    assert restarts.after(SessionLost(), ready_for=5, now=0) == Recovery("backoff", 0)


def _at(port: int, **parameters: Any) -> Any:
    return parse_server({"name": "web", "type": "streamable", "url": f"http://127.0.0.1:{port}/mcp", **parameters})


@pytest.mark.covers("supervise-states", "supervise-restart")
async def test_a_refused_credential_causes_no_restart() -> None:
    with serving(token="sesame") as (port, _):
        async with managed(_at(port)) as (manager, _changes, _events):
            assert manager.status()["web"].state == "auth_required"
            assert "HTTP 401" in manager.status()["web"].reason
            assert await manager.start("web") == {"web": "auth_required"}
            assert manager.status()["web"].starts == 2
            assert await manager.replace(_at(port, headers={"Authorization": "Bearer sesame"}))
            assert await manager.start("web") == {"web": "ready"}


@pytest.mark.covers("supervise-restart")
async def test_a_web_server_that_is_back_is_used_again_and_its_changes_are_reported() -> None:
    async with AsyncExitStack() as later:
        with serving() as (port, _):
            manager, changes, events = await later.enter_async_context(managed(_at(port)))
            events.entries.clear()
        await events.until(lambda _: events.of("web", "tools_changed"))
        assert manager.status()["web"].state in ("backoff", "starting")
        with serving(port=port):
            await changes.until(lambda _: len(changes.of("web", "ready")) == 2)
            listed = [kind for _, kind, _ in events.entries if kind in ("tools_changed", "windows_changed")]
            assert listed == ["tools_changed", "windows_changed"] * 2
            assert {"prompts_changed", "resource_list_changed"} <= {kind for _, kind, _ in events.entries}


@pytest.mark.covers("supervise-restart")
async def test_a_forgotten_session_is_opened_again_and_only_changes_are_reported() -> None:
    async with AsyncExitStack() as later:
        with serving(token="older") as (port, _):
            manager, changes, events = await later.enter_async_context(managed(_at(port)))
            assert manager.status()["web"].revision == "2025-11-25"
            await manager.call_tool("web", ToolRequest("add", {"a": 1, "b": 1}, 60))
            events.entries.clear()
        with serving(token="older", port=port):
            await changes.until(lambda _: len(changes.of("web", "ready")) == 2)
            assert "ended the session" in changes.of("web", "backoff")[0][2]
            assert {kind for _, kind, _ in events.entries} == {"resource_list_changed", "prompts_changed"}
            await manager.call_tool("web", ToolRequest("add", {"a": 1, "b": 1}, 60))


@pytest.mark.covers("supervise-restart")
async def test_a_silent_server_is_restarted_after_calls_that_time_out() -> None:
    async with managed(naughty()) as (manager, changes, _):
        await manager.call_tool("fine", ToolRequest("mute", {}, 60))
        for _ in range(3):
            with pytest.raises(CallTimeout):
                await manager.call_tool("fine", ToolRequest("echo", {}, 0.1))
        await changes.until(lambda _: len(changes.of("fine", "ready")) == 2)
        assert await echo(manager, "fine")


@pytest.mark.covers("supervise-restart")
async def test_slow_tools_of_a_healthy_server_do_not_restart_it() -> None:
    async with managed(naughty()) as (manager, changes, _):
        before = pid_of(manager, "fine")
        for _ in range(4):
            with pytest.raises(CallTimeout):
                await manager.call_tool("fine", ToolRequest("never", {}, 0.05))
        assert await echo(manager, "fine")
        assert pid_of(manager, "fine") == before
        assert len(changes.entries) == 2


@pytest.mark.covers("supervise-idle-stop")
async def test_an_unused_server_is_stopped_keeps_its_tools_and_starts_with_the_next_call() -> None:
    async with managed(naughty(), policy=quick(idle_stop=0.3)) as (manager, changes, events):
        pid = pid_of(manager, "fine")
        await changes.until(lambda _: changes.of("fine", "stopped"))
        assert [tool["name"] for tool in manager.tools("fine")] == ["echo"]
        events.entries.clear()
        assert await asyncio.gather(*(echo(manager, "fine") for _ in range(3)))
        assert not is_alive(pid)
        assert manager.status()["fine"].state == "ready"
        assert events.entries == [("fine", "resource_list_changed", None)]
        await changes.until(lambda _: len(changes.of("fine", "stopped")) == 2)
        assert await manager.start("fine") == {"fine": "ready"}


@pytest.mark.covers("supervise-idle-stop")
async def test_a_server_with_a_call_in_flight_is_not_idle() -> None:
    async with managed(naughty(), policy=quick(idle_stop=0.2)) as (manager, changes, _):
        await manager.call_tool("fine", ToolRequest("progress", {"steps": 6, "pause": 0.1}, 60))
        assert not changes.of("fine", "stopped")


@pytest.mark.covers("supervise-isolation")
async def test_calls_of_one_server_are_limited_and_waiting_counts_in_their_timeout() -> None:
    async with managed(naughty(), policy=quick(calls_at_once=1)) as (manager, _, _events):
        blocking = asyncio.create_task(manager.call_tool("fine", ToolRequest("never", {}, 30)))
        await asyncio.sleep(0)
        with pytest.raises(CallTimeout, match="had no time for it"):
            await manager.call_tool("fine", ToolRequest("echo", {}, 0.2))
        blocking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await blocking
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


@pytest.mark.covers("supervise-states")
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
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        assert await manager.start("ignores_eof") == {"ignores_eof": "ready"}
        assert not is_alive(pid)
        assert pid_of(manager, "ignores_eof") != pid
        assert [state for _, state, _ in changes.entries][:3] == ["starting", "ready", "starting"]
