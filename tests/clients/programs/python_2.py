"""The Python SDK 2.x, in the era of MCP that the second argument names."""

from __future__ import annotations

import asyncio
import json
import sys
import warnings
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version

import httpx2
from mcp import Client, StdioServerParameters, stdio_client, types
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPDeprecationWarning

warnings.simplefilter("ignore", MCPDeprecationWarning)


@asynccontextmanager
async def transport(target):
    if "command" in target:
        yield stdio_client(StdioServerParameters(**target))
    else:
        async with httpx2.AsyncClient(headers=target["headers"], timeout=60, trust_env=False) as http:
            yield streamable_http_client(target["url"], http_client=http)


async def answer(context, params):
    return types.ElicitResult(action="accept", content={"people": 4, "place": "terrace"})


async def change(client, updated):
    """The URI that is told of when a subscribed resource changes, in both eras."""
    lend, uri = {"title": "Emma"}, "library://catalogue"
    if client.protocol_version >= "2026":
        async with client.listen(resource_subscriptions=[uri]) as changes:
            await client.call_tool("lend", lend)
            async for event in changes:
                return event.uri
    await client.subscribe_resource(uri)
    await client.call_tool("lend", lend)
    return await updated.get()


async def main(target, mode):
    updated, begun, progress = asyncio.Queue(), asyncio.Event(), []

    async def hear(message):
        if isinstance(message, types.ResourceUpdatedNotification):
            updated.put_nowait(str(message.params.uri))

    async def report(value, total, message):
        progress.append(value)

    async def begin(value, total, message):
        begun.set()

    async with (
        transport(target) as connection,
        Client(connection, mode=mode, elicitation_callback=answer, message_handler=hear, cache=None) as client,
    ):
        found = {"sdk": version("mcp"), "tools": sorted(tool.name for tool in (await client.list_tools()).tools)}
        found["revision"] = client.protocol_version
        found["call"] = (await client.call_tool("add", {"a": 2, "b": 3})).content[0].text
        await client.call_tool("cook", {"dishes": 2, "seconds": 0.01}, progress_callback=report)
        found["progress"] = progress
        waiting = asyncio.create_task(client.call_tool("wait", {}, progress_callback=begin))
        await begun.wait()
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        found["question"] = (await client.call_tool("book_table", {"day": "Friday"})).content[0].text
        found["updated"] = await change(client, updated)
        found["resource"] = (await client.read_resource("library://catalogue")).contents[0].text
        found["prompt"] = (await client.get_prompt("review", {"title": "Emma"})).messages[0].content.text
    print(json.dumps(found))


asyncio.run(main(json.loads(sys.argv[1]), sys.argv[2]))
