"""Calls that are answered without the SDK's way: the same answers, cancels, and streams for answers that take long."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, MutableMapping
from typing import Any, cast

import httpx2
import pytest

from a2c_smcp.bridge.serving import plain_calls
from a2c_smcp.bridge.serving.calls import OfficeServer
from a2c_smcp.bridge.serving.plain_calls import PlainCalls
from tests.stage.bridge import AUTHORIZED, BridgedOffice

pytestmark = pytest.mark.covers("bridge-plain-calls")

VERSION = "2026-07-28"
RESERVED = "io.modelcontextprotocol/"
ELICITATION = {"elicitation": {"form": {}, "url": {}}}


def headers(tool: str) -> dict[str, str]:
    return {**AUTHORIZED, "Mcp-Protocol-Version": VERSION, "Mcp-Method": "tools/call", "Mcp-Name": tool}


def body(tool: str, arguments: dict[str, Any], capabilities: dict[str, Any], **more: Any) -> bytes:
    meta = {f"{RESERVED}protocolVersion": VERSION, f"{RESERVED}clientCapabilities": capabilities}
    params = {"name": tool, "arguments": arguments, "_meta": {**meta, **more}}
    return json.dumps({"jsonrpc": "2.0", "id": "call-1", "method": "tools/call", "params": params}).encode()


async def in_pieces(whole: bytes) -> AsyncIterator[bytes]:
    yield whole[:40]
    yield whole[40:]


def comparable(answer: httpx2.Response) -> tuple[int, Any]:
    said = answer.json()
    if "requestState" in said.get("result", {}):
        said["result"]["requestState"] = "sealed"  # each is another
        said["result"]["inputRequests"] = [*said["result"]["inputRequests"].values()]
    return answer.status_code, said


@pytest.fixture
async def url(bridged: BridgedOffice) -> str:
    """Of a bridge that has the tools of the computer."""
    _, url = await bridged.start_bridge()
    async with bridged.user(url):
        return url


async def test_a_plain_call_has_the_answer_that_the_sdk_gives(url: str) -> None:
    """A body without a length is left to the SDK."""
    calls: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("add", {"a": 20, "b": 22}, {}),
        ("add", {"a": 10**30, "b": 1}, {}),
        ("add", {"a": "x"}, {}),
        ("fail", {}, {}),
        ("chart", {}, {"sampling": {}}),
        ("link", {}, {}),
        ("greet", {}, ELICITATION),
        ("greet", {}, {}),
        ("none", {}, {}),
    ]
    async with httpx2.AsyncClient(timeout=30) as http:
        for tool, arguments, capabilities in calls:
            sent = body(tool, arguments, capabilities, vendor="kept")
            plain = await http.post(url, content=sent, headers=headers(tool))
            other = await http.post(url, content=in_pieces(sent), headers=headers(tool))
            assert (tool, comparable(plain)) == (tool, comparable(other))
        sent = body("add", {"a": 1, "b": 1}, {})
        mismatch = await http.post(url, content=sent, headers=headers("add") | {"Mcp-Name": "fail"})
        assert (mismatch.status_code, "mcp-name" in mismatch.text.lower()) == (400, True)
        foreign = await http.post(url, content=sent, headers=headers("add") | {"Host": "evil.example"})
        assert foreign.status_code == 421


class _Slow:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    def input_schema(self, name: str) -> dict[str, Any]:
        return {"type": "object"}

    async def call_plainly(self, context: Any, params: Any) -> dict[str, Any]:
        await self.go_on.wait()
        return {"content": [], "name": params.name}


async def test_an_answer_that_takes_long_comes_in_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_calls, "_SILENCE", 0.01)
    server = _Slow()

    async def never(*_: Any) -> None:
        raise AssertionError("the call is plain")

    security = plain_calls.TransportSecuritySettings(allowed_hosts=["here"])
    app = PlainCalls(never, cast(OfficeServer, server), "/mcp", security)
    content = body("slow", {}, {})
    fields = {**headers("slow"), "Host": "here", "Content-Length": str(len(content))}
    encoded = [(name.lower().encode(), value.encode()) for name, value in fields.items()]
    scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": encoded}
    coming = [{"type": "http.request", "body": content}]
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return coming.pop() if coming else await asyncio.Event().wait()  # type: ignore[return-value]

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)
        if len(sent) == 4:
            server.go_on.set()

    async with asyncio.timeout(30):
        await app(scope, receive, send)
    assert dict(sent[0]["headers"])[b"content-type"] == b"text/event-stream"
    assert [message["body"] for message in sent[1:4]] == [b": ping\r\n\r\n"] * 3
    event = sent[-1]["body"].decode()
    assert event.startswith("event: message\r\ndata: ")
    assert json.loads(event.partition("data: ")[2])["result"]["name"] == "slow"
    assert not sent[-1].get("more_body")
