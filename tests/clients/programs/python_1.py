"""The Python SDK 1.x. It has no way to cancel a request but to send the notification oneself."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from importlib.metadata import version

import httpx
from mcp import ClientSession, StdioServerParameters, stdio_client, types
from mcp.client.streamable_http import streamable_http_client


@asynccontextmanager
async def streams(target):
    if "command" in target:
        async with stdio_client(StdioServerParameters(**target)) as (read, write):
            yield read, write
    else:
        async with (
            httpx.AsyncClient(headers=target["headers"], timeout=60, trust_env=False) as http,
            streamable_http_client(target["url"], http_client=http) as (read, write, _),
        ):
            yield read, write


async def answer(context, params):
    return types.ElicitResult(action="accept", content={"people": 4, "place": "terrace"})


async def main(target):
    updated, begun, progress = asyncio.Queue(), asyncio.Event(), []

    async def hear(message):
        if isinstance(message, types.ServerNotification) and message.root.method == "notifications/resources/updated":
            updated.put_nowait(str(message.root.params.uri))

    async def report(value, total, message):
        progress.append(value)

    async def begin(value, total, message):
        begun.set()

    async with (
        streams(target) as (read, write),
        ClientSession(read, write, elicitation_callback=answer, message_handler=hear) as session,
    ):
        await session.initialize()
        found = {"sdk": version("mcp"), "tools": sorted(tool.name for tool in (await session.list_tools()).tools)}
        found["call"] = (await session.call_tool("add", {"a": 2, "b": 3})).content[0].text
        await session.call_tool("cook", {"dishes": 2, "seconds": 0.01}, progress_callback=report)
        found["progress"] = progress
        number = session._request_id  # of the next request
        waiting = asyncio.create_task(session.call_tool("wait", {}, progress_callback=begin))
        await begun.wait()
        params = types.CancelledNotificationParams(requestId=number)
        await session.send_notification(types.ClientNotification(types.CancelledNotification(params=params)))
        waiting.cancel()
        found["question"] = (await session.call_tool("book_table", {"day": "Friday"})).content[0].text
        await session.subscribe_resource("library://catalogue")
        await session.call_tool("lend", {"title": "Emma"})
        found["updated"] = await updated.get()
        found["resource"] = (await session.read_resource("library://catalogue")).contents[0].text
        found["prompt"] = (await session.get_prompt("review", {"title": "Emma"})).messages[0].content.text
    print(json.dumps(found))


asyncio.run(main(json.loads(sys.argv[1])))
