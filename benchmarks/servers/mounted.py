"""Our Server as somebody's application would have it: mounted at a path beside other routes, served by uvicorn."""

from __future__ import annotations

import socket

import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from a2c_smcp.server import create_app

__all__: list[str] = []


async def hello(request: object) -> PlainTextResponse:
    return PlainTextResponse("somebody's application")


async def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    app = Starlette(routes=[Route("/", hello), Mount("/hub", create_app())])
    config = uvicorn.Config(
        app, ws="websockets-sansio", ws_per_message_deflate=False, log_level="error", access_log=False
    )
    print("listening on http://{}:{}/hub".format(*listener.getsockname()), flush=True)
    await uvicorn.Server(config).serve([listener])


if __name__ == "__main__":
    uvloop.run(main())
