"""The published package's Server, 0.1.2 or 0.4.2: says where it listens, and ends with its standard input."""

from __future__ import annotations

import lines  # isort: skip

import argparse
import asyncio
import socket
import sys
from typing import Any

import socketio
import uvicorn
from a2c_smcp import server as published
from a2c_smcp.server import AuthenticationProvider, DefaultAuthenticationProvider, SMCPNamespace


class Anybody(AuthenticationProvider):
    async def authenticate(self, *credentials: Any) -> bool:
        return True


def application(key: str | None) -> Any:
    """As the package's own documentation puts it together: the namespace, in 0.4.2 behind the check of versions."""
    server = socketio.AsyncServer(async_mode="asgi")
    server.register_namespace(SMCPNamespace(DefaultAuthenticationProvider(key) if key else Anybody()))
    check = getattr(published, "A2CProtocolVersionASGIMiddleware", lambda app: app)
    return check(socketio.ASGIApp(server))


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--api-key", help="without it, anybody may come in")
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(application(parser.parse_args().api_key), log_level="warning", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve([listener]))
    lines.heard("ready", {"url": "http://{}:{}".format(*listener.getsockname()), "version": lines.VERSION})
    await asyncio.to_thread(sys.stdin.read)
    server.should_exit = True
    await serving


if __name__ == "__main__":
    asyncio.run(main())
