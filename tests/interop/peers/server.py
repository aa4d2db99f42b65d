"""The published package's Server, 0.4.2: says where it listens, and ends with its standard input (see `lines`)."""

from __future__ import annotations

import lines  # isort: skip

import argparse
import asyncio
import socket
import sys

import socketio
import uvicorn
from a2c_smcp.server import A2CProtocolVersionASGIMiddleware, DefaultAuthenticationProvider, SMCPNamespace


def application(key: str) -> A2CProtocolVersionASGIMiddleware:
    """As the package's own documentation puts it together: the namespace, behind the check of versions."""
    server = socketio.AsyncServer(async_mode="asgi")
    server.register_namespace(SMCPNamespace(DefaultAuthenticationProvider(key)))
    return A2CProtocolVersionASGIMiddleware(socketio.ASGIApp(server))


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--api-key", required=True)
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
