"""The Python SDK 1.x signs in: prints the page that a person has to open, and reads where that person was led to."""

from __future__ import annotations

import asyncio
import json
import sys
from urllib.parse import parse_qs, urlsplit

import httpx
from mcp import ClientSession
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientMetadata

CALLBACK = "http://127.0.0.1:33418/callback"


class Kept:
    """What the client was given."""

    tokens = client = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.client

    async def set_client_info(self, client):
        self.client = client


async def show(page):
    print(page, flush=True)


async def returned():
    answer = parse_qs(urlsplit((await asyncio.to_thread(sys.stdin.readline)).strip()).query)
    return answer["code"][0], answer["state"][0]


async def main(url):
    kept, metadata = Kept(), OAuthClientMetadata(client_name="Python 1", redirect_uris=[CALLBACK])
    auth = OAuthClientProvider(url, metadata, kept, redirect_handler=show, callback_handler=returned)
    async with (
        httpx.AsyncClient(auth=auth, timeout=60, trust_env=False) as http,
        streamable_http_client(url, http_client=http) as (read, write, _),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        result = await session.call_tool("add", {"a": 1, "b": 2})
        print(json.dumps({"call": result.content[0].text, "scope": kept.tokens.scope}), flush=True)


asyncio.run(main(sys.argv[1]))
