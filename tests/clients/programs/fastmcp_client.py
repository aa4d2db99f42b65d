"""FastMCP's client, in the era of MCP that the second argument names. Only the older one has subscriptions here."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from importlib.metadata import version

from fastmcp.client import Client
from fastmcp.client.elicitation import ElicitResult
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport


def transport(target):
    if "command" in target:
        return StdioTransport(**target)
    return StreamableHttpTransport(target["url"], headers=target["headers"])


async def answer(message, response_type, params, context):
    return ElicitResult(action="accept", content={"people": 4, "place": "terrace"})


async def main(target, mode):
    updated, begun, progress = asyncio.Queue(), asyncio.Event(), []

    async def hear(message):
        if getattr(message, "method", "") == "notifications/resources/updated":
            updated.put_nowait(str(message.params.uri))

    async def report(value, total, message):
        progress.append(value)

    async def begin(value, total, message):
        begun.set()

    async with Client(transport(target), mode=mode, elicitation_handler=answer, message_handler=hear) as client:
        found = {"sdk": version("fastmcp-slim"), "tools": sorted(tool.name for tool in await client.list_tools())}
        found["call"] = (await client.call_tool("add", {"a": 2, "b": 3})).content[0].text
        await client.call_tool("cook", {"dishes": 2, "seconds": 0.01}, progress_handler=report)
        found["progress"] = progress
        waiting = asyncio.create_task(client.call_tool("wait", {}, progress_handler=begin))
        await begun.wait()
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        found["question"] = (await client.call_tool("book_table", {"day": "Friday"})).content[0].text
        if mode == "legacy":
            await client.session.subscribe_resource("library://catalogue")
        await client.call_tool("lend", {"title": "Emma"})
        if mode == "legacy":
            found["updated"] = await updated.get()
        found["resource"] = (await client.read_resource("library://catalogue"))[0].text
        found["prompt"] = (await client.get_prompt("review", {"title": "Emma"})).messages[0].content.text
    print(json.dumps(found))


asyncio.run(main(json.loads(sys.argv[1]), sys.argv[2]))
