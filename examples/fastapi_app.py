"""A FastAPI application that contains an A2C-SMCP Server and calls the tools of its computers.

    pip install fastapi
    A2C_SERVER_API_KEY=change-me python examples/fastapi_app.py

Then, with the same key in the environment:

    a2c-smcp computer --url http://127.0.0.1:8000/a2c --office desk --name laptop --config mcp.json --yes
    curl http://127.0.0.1:8000/tools
    curl http://127.0.0.1:8000/call/laptop/add -H 'content-type: application/json' -d '{"a": 2, "b": 3}'

The endpoints use an ordinary agent of the office, with its own connection. A real application must authenticate its
users before it calls tools for them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.errors import SMCPError
from a2c_smcp.server import DefaultAuthenticationProvider, Settings, create_app

KEY = os.environ.get("A2C_SERVER_API_KEY", "change-me")
HOST, PORT = "127.0.0.1", int(os.environ.get("PORT", "8000"))

hub = create_app(Settings(auth=DefaultAuthenticationProvider(KEY)))
agent = AsyncSMCPAgentClient("web", url=f"http://{HOST}:{PORT}/a2c", office="desk", api_key=KEY)
dialling = asyncio.Lock()


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Wait for calls in flight before the application stops."""
    yield
    await agent.disconnect()
    await hub.drain()


app = FastAPI(title="Tools of the office", lifespan=lifespan)
app.mount("/a2c", hub)


@app.get("/tools")
async def tools() -> dict[str, Any]:
    """The tools of all computers in the office."""
    return (await present()).registry.describe()


@app.post("/call/{computer}/{tool}")
async def call(computer: str, tool: str, arguments: dict[str, Any]) -> Any:
    """Call a tool. Codes of protocol errors are valid HTTP codes."""
    try:
        result = await (await present()).emit_tool_call(computer, tool, arguments)
    except SMCPError as error:
        raise HTTPException(error.code, error.message) from None
    return result.to_wire()


async def present() -> AsyncSMCPAgentClient:
    """Return the agent. The first request creates it, because it can connect only once the application listens."""
    async with dialling:
        if not agent.is_connected:
            await agent.connect()
    return agent


def main() -> None:
    uvicorn.run(app, host=HOST, port=PORT, timeout_graceful_shutdown=5)


if __name__ == "__main__":
    main()
