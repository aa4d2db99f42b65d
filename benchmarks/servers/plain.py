"""What one writes with python-socketio alone, on uvicorn as it comes: `call` to the computer, its answer returned."""

from __future__ import annotations

import socket
from typing import Any

import socketio
import uvicorn
import uvloop

__all__: list[str] = []

NAMESPACE = "/smcp"
MAX_MESSAGE = 8 * 2**20
TIMEOUT = 30


sio = socketio.AsyncServer(async_mode="asgi", max_http_buffer_size=MAX_MESSAGE, ping_interval=10, ping_timeout=8)
seats: dict[tuple[str, str], str] = {}
offices: dict[str, str] = {}


@sio.on("server:join_office", namespace=NAMESPACE)
async def join(sid: str, data: dict[str, Any]) -> tuple[bool, None]:
    office = data["office_id"]
    seats[office, data["name"]] = sid
    offices[sid] = office
    await sio.enter_room(sid, office, namespace=NAMESPACE)
    await sio.emit("notify:enter_office", data, room=office, skip_sid=sid, namespace=NAMESPACE)
    return True, None


@sio.on("client:tool_call", namespace=NAMESPACE)
async def relay(sid: str, data: dict[str, Any]) -> Any:
    computer = seats[offices[sid], data["computer"]]
    return await sio.call("client:tool_call", data, to=computer, namespace=NAMESPACE, timeout=TIMEOUT)


async def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(socketio.ASGIApp(sio), ws_max_size=MAX_MESSAGE, log_level="error", access_log=False)
    print("listening on http://{}:{}".format(*listener.getsockname()), flush=True)
    await uvicorn.Server(config).serve([listener])


if __name__ == "__main__":
    uvloop.run(main())
