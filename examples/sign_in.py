"""A Starlette application that contains an A2C-SMCP Server on which people sign in their MCP clients.

    pip install starlette uvicorn
    A2C_SERVER_API_KEY=a-key-of-at-least-twenty-characters python examples/sign_in.py

Then any MCP client that knows how to sign in can use http://127.0.0.1:8000/mcp/desk. What the page says is the
application's; how people are identified, and what they allow, is not. OAuth wants the Server at the root of its origin.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from a2c_smcp.bridge.on_server import PREFIXES, OfficesAsMCPServers
from a2c_smcp.console import sign_in
from a2c_smcp.server import DefaultAuthenticationProvider, Settings, SignIn, create_app

KEY = os.environ.get("A2C_SERVER_API_KEY", "a-key-of-at-least-twenty-characters")
HOST, PORT = "127.0.0.1", int(os.environ.get("PORT", "8000"))
URL = f"http://{HOST}:{PORT}"

signing_in = SignIn(
    public_url=URL,
    file=Path(os.environ.get("GRANTS", "grants.json")),
    page_text={"Sign in a client": "Let an assistant into Example Ltd."},
)
hub = create_app(Settings(auth=DefaultAuthenticationProvider(KEY), sign_in=signing_in))
hub.mount(OfficesAsMCPServers(hub, URL), *PREFIXES)
hub.mount(sign_in.SignInPages(hub), *sign_in.PREFIXES, has_cors=False)


async def hello(request: Request) -> PlainTextResponse:
    """A page of the application itself."""
    return PlainTextResponse("Hello")


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Wait for calls in flight before the application stops."""
    yield
    await hub.drain()
    await hub.close()


app = Starlette(routes=[Route("/hello", hello), Mount("/", hub)], lifespan=lifespan)


def main() -> None:
    uvicorn.run(app, host=HOST, port=PORT, timeout_graceful_shutdown=5)


if __name__ == "__main__":
    main()
