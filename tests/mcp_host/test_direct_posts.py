"""Calls that are posted without the SDK, to a server that answers each tool in another way over HTTP."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from a2c_smcp.mcp_host.config.servers import parse_server
from a2c_smcp.mcp_host.failures import ServerGone
from a2c_smcp.mcp_host.sessions.tool_request import ToolRequest
from tests.computer.supervised import session, text_of

pytestmark = pytest.mark.covers("mcp-direct-posts")

VERSION = "2026-07-28"
HEADED = {"type": "object", "properties": {"place": {"type": "string", "x-mcp-header": "Place"}}}

Behaviour = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


def answer(request: dict[str, Any], text: str = "done") -> dict[str, Any]:
    result = {"resultType": "complete", "content": [{"type": "text", "text": text}], "isError": False}
    return {"jsonrpc": "2.0", "id": request["id"], "result": result}


def event(message: dict[str, Any]) -> bytes:
    return b"event: message\ndata: " + json.dumps(message).encode() + b"\n\n"


def progress(request: dict[str, Any]) -> dict[str, Any]:
    params = {"progressToken": request["params"]["_meta"]["progressToken"], "progress": 1, "message": "half"}
    return {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}


async def streamed(http: web.Request, *messages: dict[str, Any], kind: str = "text/event-stream") -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": kind})
    await response.prepare(http)
    for message in messages:
        await response.write(event(message) if "event" in kind else json.dumps(message).encode())
    return response


async def plain(http: web.Request, request: dict[str, Any]) -> web.StreamResponse:
    names = ("Mcp-Method", "Mcp-Name", "Mcp-Protocol-Version", "Mcp-Param-Place", "X-Own")
    return web.json_response(answer(request, json.dumps([http.headers.get(name) for name in names])))


async def redirected(http: web.Request, request: dict[str, Any]) -> web.StreamResponse:
    if http.path == "/mcp":
        raise web.HTTPTemporaryRedirect("/moved")
    return web.json_response(answer(request, "moved"))


async def refused(http: web.Request, request: dict[str, Any]) -> web.StreamResponse:
    error = {"code": -32602, "message": "no such thing", "data": {"why": "none"}}
    return web.json_response({"jsonrpc": "2.0", "id": request["id"], "error": error}, status=400)


async def broken(http: web.Request, request: dict[str, Any]) -> web.StreamResponse:
    return web.Response(status=500, text="oh")


async def compressed(http: web.Request, request: dict[str, Any]) -> web.StreamResponse:
    body = gzip.compress(json.dumps(answer(request, "x" * 100_000)).encode())
    return web.Response(body=body, headers={"Content-Type": "application/json", "Content-Encoding": "gzip"})


async def long(http: web.Request, request: dict[str, Any]) -> web.StreamResponse:
    return web.json_response(answer(request, "x" * 1_000_000))


async def unmeasured(http: web.Request, request: dict[str, Any]) -> web.StreamResponse:
    return await streamed(http, answer(request), kind="application/json")


async def events(http: web.Request, request: dict[str, Any]) -> web.StreamResponse:
    return await streamed(http, progress(request), answer(request))


async def cut(http: web.Request, request: dict[str, Any]) -> web.StreamResponse:
    return await streamed(http, progress(request))


async def odd(http: web.Request, request: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"jsonrpc": "2.0", "id": request["id"], "result": 7})


BEHAVIOURS: dict[str, Behaviour] = {
    each.__name__: each for each in (plain, redirected, refused, broken, compressed, long, unmeasured, events, cut, odd)
}


class Server:
    """`sent` are the tools whose calls came, as often as they came."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.url = ""

    async def answer(self, http: web.Request) -> web.StreamResponse:
        request = await http.json()
        params = request["params"]
        if request["method"] == "tools/call":
            self.sent.append(params["name"])
            return await BEHAVIOURS[params["name"]](http, request)
        result: dict[str, Any] = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        if request["method"] == "tools/list":
            result["tools"] = [{"name": name, "inputSchema": HEADED} for name in BEHAVIOURS]
        else:
            result |= {"supportedVersions": [VERSION], "capabilities": {"tools": {}}}
        return web.json_response({"jsonrpc": "2.0", "id": request["id"], "result": result})


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    one = Server()
    app = web.Application()
    for path in ("/mcp", "/moved"):
        app.router.add_post(path, one.answer)
    async with TestServer(app) as served:
        one.url = str(served.make_url("/mcp"))
        yield one


async def test_every_kind_of_answer_is_read_and_no_call_is_carried_out_twice(server: Server) -> None:
    config = parse_server({"name": "web", "type": "streamable", "url": server.url, "headers": {"X-Own": "7"}})
    reports: list[Any] = []

    async with session(config) as one:

        async def call(tool: str) -> dict[str, Any]:
            request = ToolRequest(tool, {"place": "here"}, 30, on_progress=lambda *report: reports.append(report))
            return await one.call_tool(request)

        texts = {tool: text_of(await call(tool)) for tool in BEHAVIOURS if tool not in ("refused", "cut")}
        assert json.loads(texts.pop("plain")) == ["tools/call", "plain", VERSION, "here", "7"]
        assert "HTTP 500" in texts.pop("broken")
        assert "not an MCP result" in texts.pop("odd")
        large = {"compressed": "x" * 100_000, "long": "x" * 1_000_000}
        assert texts == {"redirected": "moved", **large, "unmeasured": "done", "events": "done"}
        assert reports == [(1.0, None, "half")]
        assert (await call("refused"))["_meta"]["a2c_mcp_error"]["data"] == {"why": "none"}
        with pytest.raises(ServerGone, match="ended without a response"):
            await call("cut")
        assert text_of(await call("events")) == "done"  # only that call has failed
    assert Counter(server.sent) == Counter([*BEHAVIOURS, "redirected", "redirected", "events"])
