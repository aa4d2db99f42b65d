"""The npm server with one tool for each feature of MCP: an agent uses all of them through an office."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.computer import Computer
from a2c_smcp.protocol.questions import Question
from a2c_smcp.protocol.results import CallToolResult
from tests.computer.hosted import hosted, ready
from tests.stage.installed import npm

HELLO = "data:text/plain;base64,aGVsbG8="
CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "echo": ({"message": "三 ☃"}, "Echo: 三 ☃"),
    "get-annotated-message": ({"messageType": "success"}, "Operation completed successfully"),
    "get-env": ({}, '"EVERYTHING": "here"'),
    "get-resource-links": ({"count": 2}, "Here are 2 resource links"),
    "get-resource-reference": ({"resourceType": "Text", "resourceId": 1}, "resource reference for Resource 1"),
    "get-roots-list": ({}, "roots"),
    "get-structured-content": ({"location": "Chicago"}, '"conditions"'),
    "get-sum": ({"a": 2, "b": 40}, "The sum of 2 and 40 is 42"),
    "get-tiny-image": ({}, "the MCP logo"),
    "gzip-file-as-resource": ({"name": "hello.gz", "data": HELLO, "outputType": "resource"}, ""),
    "simulate-research-query": ({"topic": "python", "ambiguous": True}, "Research Report: python (snake)"),
    "toggle-simulated-logging": ({}, "Started simulated"),
    "toggle-subscriber-updates": ({}, "Started simulated"),
    "trigger-elicitation-request": ({}, "- Name: Ada\n"),
    "trigger-long-running-operation": ({"duration": 0.4, "steps": 2}, "Duration: 0.4 seconds, Steps: 2"),
    "trigger-sampling-request": ({"prompt": "hello"}, '"text": "the model\'s words"'),
    "trigger-url-elicitation": ({"url": "https://example.com/visit"}, "User completed the URL elicitation flow"),
}
"""For each tool, arguments and a part of the text that it then returns. Two more are for clients that run tasks."""
ASKING = (
    "simulate-research-query",
    "trigger-elicitation-request",
    "trigger-url-elicitation",
)


@asynccontextmanager
async def planner(url: str, office: str, folder: Path) -> AsyncIterator[AsyncSMCPAgentClient]:
    """An agent in an office with a computer that hosts the server; no owner is there."""
    computer = Computer("laptop")
    command, program = npm("everything")
    server = {"name": "everything", "command": command, "args": [str(program)], "env": {"EVERYTHING": "here"}}
    computer.add_server({**server, "default_tool_meta": {"auto_apply": True}, "questions_for_agents": ["url"]})
    async with hosted(computer, url, office, folder):
        await ready(computer, "everything")
        async with AsyncSMCPAgentClient("planner", url=url, office=office) as agent:
            yield agent


def form(schema: dict[str, Any]) -> dict[str, Any]:
    """What a person fills in."""
    known = {"name": "Ada", "interpretation": "snake"}
    return {name: known[name] for name in schema["properties"] if name in known}


ANSWERS = {
    "elicitation/create": lambda params: {
        "action": "accept",
        **({"content": form(params["requestedSchema"])} if "requestedSchema" in params else {}),
    },
    "sampling/createMessage": lambda params: {
        "role": "assistant",
        "model": "model",
        "content": {"type": "text", "text": "the model's words"},
    },
    "roots/list": lambda params: {"roots": [{"uri": "file:///work", "name": "work"}]},
}


async def as_mcp_does(agent: AsyncSMCPAgentClient, tool: str, arguments: dict[str, Any]) -> CallToolResult:
    """Call a tool as an agent that speaks MCP itself: what the server asks is the result, until it is answered."""
    options: Any = {"questions": "result", "client_capabilities": {"elicitation": {}, "sampling": {}, "roots": {}}}
    while True:
        result = await agent.emit_tool_call("laptop", tool, arguments, 60, **options)
        if not result.is_input_required:
            return result
        requests = result.input_requests.items()
        responses = {key: ANSWERS[asked["method"]](asked.get("params") or {}) for key, asked in requests}
        options |= {"input_responses": responses, "request_state": result.request_state}


@pytest.mark.covers("mcp-eras", "mcp-features")
async def test_an_agent_uses_all_of_its_tools_as_mcp_does(shared_hub: Any, office: str, tmp_path: Path) -> None:
    async with planner(shared_hub.url, office, tmp_path) as agent:
        assert {tool["name"] for tool in await agent.get_tools("laptop")} == CALLS.keys()
        results = {tool: await as_mcp_does(agent, tool, arguments) for tool, (arguments, _) in CALLS.items()}
        assert {tool: result.text for tool, result in results.items() if result.is_error} == {}
        assert {tool: result.text for tool, result in results.items() if CALLS[tool][1] not in result.text} == {}
        compressed = results["gzip-file-as-resource"].content[0]["resource"]
        assert gzip.decompress(base64.b64decode(compressed["blob"])) == b"hello"
        assert {block["type"] for block in results["get-tiny-image"].content} == {"text", "image"}
        assert results["get-structured-content"].structured_content == json.loads(
            results["get-structured-content"].text
        )


@pytest.mark.covers("mcp-eras", "mcp-features")
async def test_an_agent_answers_the_questions_of_its_tools_and_hears_progress(
    shared_hub: Any, office: str, tmp_path: Path
) -> None:
    asked: list[Question] = []
    heard: list[float] = []

    def answer(question: Question) -> dict[str, Any]:
        asked.append(question)
        return form(dict(question.schema)) if question.mode == "form" else {}

    async with planner(shared_hub.url, office, tmp_path) as agent:
        for tool in ASKING:
            arguments, expected = CALLS[tool]
            result = await agent.emit_tool_call("laptop", tool, arguments, 60, on_question=answer)
            assert expected in result.text, (tool, result)
        arguments, expected = CALLS["trigger-long-running-operation"]
        result = await agent.emit_tool_call(
            "laptop",
            "trigger-long-running-operation",
            arguments,
            60,
            on_progress=lambda progress, total, message: heard.append(progress),
        )
        assert expected in result.text
    assert [question.tool for question in asked] == [*ASKING]
    assert heard[-1:] == [2.0]
