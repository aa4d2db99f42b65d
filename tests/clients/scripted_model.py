"""A model on loopback that calls the tool `add` once, in the protocols of four providers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from aiohttp import web

ARGUMENTS = {"a": 1, "b": 2}

Json: TypeAlias = dict[str, Any]
Events: TypeAlias = list[Json]


@asynccontextmanager
async def scripted_model() -> AsyncIterator[str]:
    """Yields its URL. A client gets a call of `add` if it offers that tool, and words otherwise."""
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.add_routes([web.post("/{path:.*}", _answer), web.get("/{path:.*}", _models)])
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _models(request: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [], "models": []})


async def _answer(request: web.Request) -> web.Response:
    asked = await request.json()
    for ending, (tools, said, protocol) in _PROTOCOLS.items():
        if ending in request.path:
            name = next((name for name in tools(asked) if name.endswith("add")), None)
            calls = name if name and not said(asked) else None
            events = protocol(calls)
            if request.query.get("alt") == "sse" or asked.get("stream"):
                text = "".join(f"{_event(each)}data: {json.dumps(each)}\n\n" for each in events)
                return web.Response(text=text, content_type="text/event-stream")
            return web.json_response(events[-1])
    raise web.HTTPNotFound


def _event(each: Json) -> str:
    return f"event: {each['type']}\n" if "type" in each else ""


def _anthropic(calls: str | None) -> Events:
    """The messages API."""
    block: Json = {"type": "tool_use", "id": "toolu_1", "name": calls, "input": {}} if calls else {"type": "text"}
    block |= {} if calls else {"text": ""}
    text = {"type": "input_json_delta", "partial_json": json.dumps(ARGUMENTS)}
    delta = text if calls else {"type": "text_delta", "text": "done"}
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "scripted", "content": []}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": usage}
    ends = {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}
    return [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": ends, "usage": usage},
        {"type": "message_stop"},
    ]


def _openai(calls: str | None) -> Events:
    """The responses API. A name is that of a tool, or those of a namespace and a tool in it."""
    space, _, name = (calls or "").rpartition("/")
    item: Json = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
    item |= {"content": [{"type": "output_text", "text": "done", "annotations": []}]}
    if calls:
        item = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": name, "status": "completed"}
        item |= {"arguments": json.dumps(ARGUMENTS)} | ({"namespace": space} if space else {})
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    answer = {"id": "resp_1", "object": "response", "status": "completed", "output": [item], "usage": usage}
    return [
        {"type": "response.created", "response": {**answer, "status": "in_progress", "output": []}},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": answer},
    ]


def _chat(calls: str | None) -> Events:
    """Chat completions."""
    function = {"name": calls, "arguments": json.dumps(ARGUMENTS)}
    delta: Json = {"role": "assistant", "content": "done"}
    if calls:
        delta = {
            "role": "assistant",
            "tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": function}],
        }
    head = {"id": "chat_1", "object": "chat.completion.chunk", "created": 1, "model": "scripted"}
    ends = {"index": 0, "delta": {}, "finish_reason": "tool_calls" if calls else "stop"}
    return [{**head, "choices": [{"index": 0, "delta": delta}]}, {**head, "choices": [ends]}]


def _gemini(calls: str | None) -> Events:
    """Generated content."""
    part: Json = {"functionCall": {"name": calls, "args": ARGUMENTS}} if calls else {"text": "done"}
    content = {"role": "model", "parts": [part]}
    usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
    return [{"candidates": [{"content": content, "finishReason": "STOP", "index": 0}], "usageMetadata": usage}]


def _named(asked: Json) -> list[str]:
    return [each.get("name", "") for each in asked.get("tools", [])]


def _in_namespaces(asked: Json) -> list[str]:
    inner = [f"{each['name']}/{tool['name']}" for each in asked.get("tools", []) for tool in each.get("tools", [])]
    return inner + _named(asked)


def _functions(asked: Json) -> list[str]:
    return [each["function"]["name"] for each in asked.get("tools", [])]


def _declared(asked: Json) -> list[str]:
    return [each["name"] for tool in asked.get("tools", []) for each in tool.get("functionDeclarations", [])]


def _says(word: str) -> Callable[[Json], bool]:
    """True if a tool was called before in this conversation."""
    return lambda asked: word in json.dumps([asked.get(name) for name in ("messages", "input", "contents")])


_PROTOCOLS: dict[str, tuple[Callable[[Json], list[str]], Callable[[Json], bool], Callable[[str | None], Events]]] = {
    "/count_tokens": (_named, _says(""), lambda calls: [{"input_tokens": 1}]),
    "/messages": (_named, _says('"type": "tool_result"'), _anthropic),
    "/responses": (_in_namespaces, _says('"function_call_output"'), _openai),
    "/chat/completions": (_functions, _says('"role": "tool"'), _chat),
    "enerateContent": (_declared, _says('"functionResponse"'), _gemini),
}
