"""MCP servers behind streamable HTTP and SSE: use, loss, refusal and end of a session."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from mcp_types import MISSING_REQUIRED_CLIENT_CAPABILITY

from a2c_smcp.errors import CallTimeout
from a2c_smcp.mcp_host.config.servers import MCPServerConfig, parse_server
from a2c_smcp.mcp_host.failures import AuthRequired, ServerFailure, ServerGone, SessionLost
from a2c_smcp.mcp_host.sessions.server_info import LogMessage
from a2c_smcp.mcp_host.sessions.tool_request import ToolRequest
from a2c_smcp.mcp_host.sign_in.addresses import certificates
from tests.computer.pace import within
from tests.computer.supervised import Notebook, quick, reading, serving, session, start_and_stop, text_of
from tests.mcp_host.scripts import Person
from tests.ports import free_port
from tests.stage.strangers import answering
from tests.waiting import until

pytestmark = pytest.mark.covers("mcp-transports")

KINDS = [("streamable", False), ("streamable", True), ("sse", False), ("sse", True)]
every_kind = pytest.mark.parametrize(("kind", "legacy"), KINDS, ids=["streamable", "older", "sse", "sse-older"])
PATHS = {"streamable": "/mcp", "sse": "/sse"}


def http(kind: str, port: int, **parameters: Any) -> MCPServerConfig:
    url = f"http://127.0.0.1:{port}{PATHS[kind]}"
    return parse_server({"name": kind, "type": kind, "server_parameters": {"url": url, **parameters}})


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Where a good server listens, for all tests that do it no harm."""
    with serving() as (port, _):
        yield port


@pytest.fixture(scope="module")
def guarded_port() -> Iterator[int]:
    """Where a good server listens that wants a token."""
    with serving(token="sesame") as (port, _):
        yield port


@every_kind
@pytest.mark.covers("mcp-eras")
async def test_tools_windows_progress_and_large_results_work_over_http(kind: str, legacy: bool, port: int) -> None:
    told: list[Any] = []
    async with session(http(kind, port), legacy=legacy) as one:
        assert len(one.tools) >= 9
        assert (await one.call_tool(ToolRequest("add", {"a": 20, "b": 22}, 60)))["structuredContent"] == {"result": 42}
        slow = {"steps": 3, "pause": 0.01}
        await one.call_tool(ToolRequest("slow", slow, 60, on_progress=lambda *how_far: told.append(how_far[0])))
        assert told == [1, 2, 3]
        assert len(text_of(await one.call_tool(ToolRequest("big", {"size": 5_000_000}, 20)))) == 5_000_000
        assert (await one.read(reading("window://good/two")))["contents"][0]["text"] == "second"
        assert bool(one.windows) == (one.revision == "2026-07-28")
        await one.check(5)


@every_kind
async def test_other_calls_over_http_go_on_after_a_cancelled_or_late_one(kind: str, legacy: bool, port: int) -> None:
    async with session(http(kind, port), legacy=legacy) as one:
        slow = {"steps": 5, "pause": 0.1}
        first, second = (asyncio.create_task(one.call_tool(ToolRequest("slow", slow, 10))) for _ in range(2))
        await one.call_tool(ToolRequest("add", {"a": 1, "b": 1}, 60))
        first.cancel()
        with pytest.raises(CallTimeout):
            await one.call_tool(ToolRequest("slow", {"steps": 1, "pause": 5}, 0.2))
        assert text_of(await second) == "done"
        with pytest.raises(asyncio.CancelledError):
            await first


@pytest.mark.covers("desktop-watch")
async def test_changes_are_reported_over_http(port: int) -> None:
    events, uri = Notebook(), "window://good/three"
    changes = {
        ("windows_changed",): ToolRequest("open_window", {"uri": uri, "text": "new"}, 60),
        ("window_updated", uri): ToolRequest("touch_window", {"uri": uri}, 60),
        ("tools_changed",): ToolRequest("grow", {"name": "novel"}, 60),
    }
    async with session(http("streamable", port), events=events) as one:
        for event, call in changes.items():
            await one.call_tool(call)
            await events.until(lambda _, event=event: events.of(*event))


@pytest.mark.parametrize("kind", ["streamable", "sse"])
async def test_an_unreachable_server_is_reported_at_once(kind: str) -> None:
    with within(2), pytest.raises(ServerGone, match="connect error"):
        await start_and_stop(http(kind, free_port()))


@pytest.mark.parametrize("kind", ["streamable", "sse"])
async def test_a_url_without_an_mcp_server_is_refused(kind: str, port: int) -> None:
    with pytest.raises(ServerFailure, match=r"404|Not Found"):
        await start_and_stop(http(kind, port, url=f"http://127.0.0.1:{port}/elsewhere"))


@every_kind
async def test_a_killed_server_is_noticed_in_a_call_and_while_idle(kind: str, legacy: bool) -> None:
    idle, busy = Notebook(), Notebook()
    with serving() as (port, process):
        async with (
            session(http(kind, port), legacy=legacy, events=idle),
            session(http(kind, port), legacy=legacy, events=busy) as one,
        ):
            call = asyncio.create_task(one.call_tool(ToolRequest("slow", {"steps": 100, "pause": 0.1}, 30)))
            await one.call_tool(ToolRequest("add", {"a": 1, "b": 1}, 60))
            process.kill()
            with within(1), pytest.raises(ServerGone):
                await call
            await idle.until(lambda _: idle.of("lost"))
            await busy.until(lambda _: busy.of("lost"))


@pytest.mark.covers("supervise-restart")
async def test_a_session_that_the_server_has_forgotten_is_lost() -> None:
    events = Notebook()
    async with AsyncExitStack() as later:
        with serving() as (port, _):
            one = await later.enter_async_context(session(http("streamable", port), legacy=True, events=events))
        with serving(port=port):
            await events.until(lambda _: events.of("lost"))
            assert isinstance(events.entries[0][1], SessionLost)
            with pytest.raises(SessionLost):
                await one.call_tool(ToolRequest("add", {"a": 1, "b": 1}, 60))


async def test_the_certificates_of_the_machine_are_read_once_for_all_servers(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda *_, **__: read.append("certificates"))
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda *_, **__: read.append("certificates"))
    certificates.cache_clear()
    async with session(http("streamable", port)), session(http("sse", port)):
        assert read == ["certificates"]
    certificates.cache_clear()


@every_kind
async def test_headers_are_sent_and_a_refusal_asks_for_authentication(
    kind: str, legacy: bool, guarded_port: int
) -> None:
    async with session(http(kind, guarded_port, headers={"Authorization": "Bearer sesame"}), legacy=legacy) as one:
        await one.call_tool(ToolRequest("add", {"a": 1, "b": 1}, 60))
    with pytest.raises(AuthRequired, match="HTTP 401"):
        await start_and_stop(http(kind, guarded_port), legacy=legacy)


async def test_a_session_is_deleted_if_so_configured_and_a_refused_post_does_not_hang(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with serving(token="post:sesame", log=str(log)) as (port, _):
        with within(2), pytest.raises(AuthRequired, match="HTTP 401"):
            await start_and_stop(http("sse", port))
        for terminate in (False, True):
            headers = {"Authorization": "Bearer sesame"}
            config = http("streamable", port, headers=headers, terminate_on_close=terminate)
            async with session(config, legacy=True):
                assert "DELETE /mcp" not in log.read_text()
            assert ("DELETE /mcp" in log.read_text()) is terminate


async def test_a_silent_server_is_checked_and_lost_only_if_it_does_not_answer() -> None:
    books = [Notebook() for _ in KINDS]
    with serving() as (port, process):
        async with AsyncExitStack() as stack:
            for (kind, legacy), events in zip(KINDS, books, strict=True):
                config = http(kind, port, sse_read_timeout={"streamable": "PT0.3S", "sse": 0.3}[kind])
                opened = session(config, legacy=legacy, events=events, policy=quick(health_limit=0.5))
                one = await stack.enter_async_context(opened)
            await one.call_tool(ToolRequest("slow", {"steps": 1, "pause": 1.0}, 60))
            assert not any(events.entries for events in books)
            os.kill(process.pid, signal.SIGSTOP)
            for events in books:
                await events.until(lambda told: told)
                assert "nothing was heard" in events.entries[0][1].message
            os.kill(process.pid, signal.SIGCONT)


@pytest.mark.parametrize("kind", ["streamable", "sse"])
async def test_a_server_that_answers_in_html_is_refused(kind: str) -> None:
    async with answering("200 OK\r\ncontent-type: text/html", "hi") as page:
        with pytest.raises(ServerFailure, match=r"content type|stream of events"):
            await start_and_stop(http(kind, 0, url=page.url + PATHS[kind]), policy=quick(start_limit=3))


@every_kind
@pytest.mark.covers("questions-rounds", "questions-push", "server-logs")
async def test_questions_logs_and_nulls_work_over_http(kind: str, legacy: bool, port: int) -> None:
    told: list[LogMessage] = []
    person = Person(**{"Your name?": {"name": "Ada"}, "Sure, Ada?": {"sure": True}})
    async with session(http(kind, port), legacy=legacy, on_log=told.append) as one:
        await one.request_logs("info")
        assert text_of(await one.call_tool(ToolRequest("greet", {}, 30, on_input=person))) == "Hello, Ada"
        assert [each.params["message"] for each in person.asked] == ["Your name?", "Sure, Ada?"]
        await until(lambda: told)
        assert told == [LogMessage("info", "greeter", {"sure": True})]
        refused = await one.call_tool(ToolRequest("greet", {}, 30))
        assert refused["isError"] is True
        if one.revision == "2026-07-28":
            assert refused["_meta"]["a2c_mcp_error"]["code"] == MISSING_REQUIRED_CLIENT_CAPABILITY
        echoed = await one.call_tool(ToolRequest("echo", {"value": {"a": [None]}, "none": None}, 30, meta={"m": None}))
        assert echoed["structuredContent"]["arguments"] == {"value": {"a": [None]}, "none": None}
        assert echoed["structuredContent"]["meta"]["m"] is None
