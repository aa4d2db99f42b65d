"""Calls of the scripted server, the people who answer its questions, and what it has heard."""

from __future__ import annotations

import asyncio
from typing import Any

from a2c_smcp.mcp_host.config.servers import MCPServerConfig
from a2c_smcp.mcp_host.sessions.session import MCPSession
from a2c_smcp.mcp_host.sessions.tool_request import InputRefused, ToolRequest
from a2c_smcp.protocol.questions import InputRequest
from tests.computer.supervised import script, text_of
from tests.waiting import until


def scripted(era: str) -> MCPServerConfig:
    return script("scripted.py", era)


def form(message: str = "Your name?", **more: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {}}
    return {"method": "elicitation/create", "params": {"message": message, "requestedSchema": schema, **more}}


def finished(text: str = "done") -> dict[str, Any]:
    return {"result": {"content": [{"type": "text", "text": text}]}}


def call(tool: str, *answers: dict[str, Any], **extra: Any) -> ToolRequest:
    """`call("plain", first, second, on_input=…)`; `key`, `tasks` and `notify` are for the server."""
    script = {key: extra.pop(key) for key in ("key", "tasks", "notify") if key in extra}
    if answers:
        script["answers"] = list(answers)
    return ToolRequest(tool, script, extra.pop("timeout", 30), **extra)


async def told(session: MCPSession, tool: str, *answers: dict[str, Any], **extra: Any) -> str:
    """The text of the result of such a call."""
    return text_of(await session.call_tool(call(tool, *answers, **extra)))


async def heard(session: MCPSession, method: str | None = None) -> list[dict[str, Any]]:
    """What the server has heard, requests and notifications of this method, or replies."""
    result = await session.call_tool(ToolRequest("heard", {}, 30))
    messages: list[dict[str, Any]] = result["structuredContent"]["heard"][:-1]  # the last one asks for this
    return [message for message in messages if message.get("method") == method]


class Person:
    """Answers what is in `answers`, by message; waits for ever where there is nothing."""

    def __init__(self, **answers: Any) -> None:
        self.asked: list[InputRequest] = []
        self.withdrawn: list[str] = []
        self.answers = answers

    async def __call__(self, asked: InputRequest) -> dict[str, Any]:
        self.asked.append(asked)
        message = asked.params.get("message", asked.method)
        try:
            if message not in self.answers:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.withdrawn.append(message)
            raise
        answer = self.answers[message]
        if isinstance(answer, InputRefused):
            raise answer
        return {"action": "accept", "content": answer} if asked.method == "elicitation/create" else answer

    async def until_asked(self, times: int = 1) -> None:
        await until(lambda: len(self.asked) >= times)

    async def until_withdrawn(self, times: int = 1) -> None:
        await until(lambda: len(self.withdrawn) >= times)

    def forget(self) -> None:
        self.asked.clear()
        self.withdrawn.clear()
