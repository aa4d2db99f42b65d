"""One node of several, with python-socketio alone: its Redis manager passes events on. `plain_node.py REDIS_URL`.

Who sits where is kept in the store and asked for once, which the manager does not do: it knows its own node's clients.
"""

from __future__ import annotations

import socket
import sys
from typing import Any

import orjson
import socketio
import uvicorn
import uvloop
from redis.asyncio import Redis

__all__: list[str] = []

NAMESPACE = "/smcp"
MAX_MESSAGE = 8 * 2**20
TIMEOUT = 30


class JSON:
    """orjson, by the names that python-socketio asks for."""

    loads = staticmethod(orjson.loads)

    @staticmethod
    def dumps(value: Any, **settings: Any) -> str:
        return orjson.dumps(value).decode()


async def serve(url: str) -> None:
    sio = socketio.AsyncServer(
        async_mode="asgi",
        client_manager=socketio.AsyncRedisManager(url),
        json=JSON,
        max_http_buffer_size=MAX_MESSAGE,
        ping_interval=10,
        ping_timeout=8,
    )
    listen(sio, Redis.from_url(url, decode_responses=True))
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        socketio.ASGIApp(sio), ws="websockets-sansio", ws_per_message_deflate=False, log_level="error", access_log=False
    )
    print("listening on http://{}:{}".format(*listener.getsockname()), flush=True)
    await uvicorn.Server(config).serve([listener])


def listen(sio: socketio.AsyncServer, store: Redis) -> None:
    seats: dict[tuple[str, str], str] = {}
    offices: dict[str, str] = {}

    async def seat(office: str, name: str) -> str:
        if (office, name) not in seats:
            seats[office, name] = await store.hget(f"office:{office}", name)
        return seats[office, name]

    @sio.on("server:join_office", namespace=NAMESPACE)
    async def join(sid: str, data: dict[str, Any]) -> tuple[bool, None]:
        office = offices[sid] = data["office_id"]
        await store.hset(f"office:{office}", data["name"], sid)
        await sio.enter_room(sid, office, namespace=NAMESPACE)
        await sio.emit("notify:enter_office", data, room=office, skip_sid=sid, namespace=NAMESPACE)
        return True, None

    @sio.on("client:tool_call", namespace=NAMESPACE)
    async def relay(sid: str, data: dict[str, Any]) -> Any:
        computer = await seat(offices[sid], data["computer"])
        return await sio.call("client:tool_call", data, to=computer, namespace=NAMESPACE, timeout=TIMEOUT)


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1]))
