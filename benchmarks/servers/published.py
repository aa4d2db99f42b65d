"""The published package's Server, 0.4.2, put together as its own documentation does. Runs where that is installed."""

from __future__ import annotations

import asyncio
import socket

import socketio
import uvicorn

from a2c_smcp.server import A2CProtocolVersionASGIMiddleware, DefaultAuthenticationProvider, SMCPNamespace

__all__: list[str] = []

MAX_MESSAGE = 8 * 2**20


async def main() -> None:
    """Larger messages than its default are let in, and pings come as often as the others'; all else is as it comes."""
    server = socketio.AsyncServer(async_mode="asgi", max_http_buffer_size=MAX_MESSAGE, ping_interval=10, ping_timeout=8)
    server.register_namespace(SMCPNamespace(DefaultAuthenticationProvider("benchmark-0123456789")))
    app = A2CProtocolVersionASGIMiddleware(socketio.ASGIApp(server))
    listener = socket.create_server(("127.0.0.1", 0))
    print("listening on http://{}:{}".format(*listener.getsockname()), flush=True)
    await uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False)).serve([listener])


if __name__ == "__main__":
    asyncio.run(main())
