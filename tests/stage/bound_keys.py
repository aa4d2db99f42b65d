"""Keys that are bound to a device, and sessions that prove it."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from a2c_smcp.devices.identity import Identity, make_proof
from a2c_smcp.server.auth.api_keys import hash_key, new_key
from tests.peer import PATIENCE, Wire

DEVICE, OTHER = Identity.generate(), Identity.generate()
TOKEN, SECOND = new_key(), new_key()


def keys_file(folder: Path, device: Identity = DEVICE) -> Path:
    path = folder / "keys.json"
    entry = {"principal": "laptop", "device": device.fingerprint}
    path.write_text(json.dumps({hash_key(TOKEN): entry, hash_key(SECOND): entry}))
    return path


class Session:
    """A websocket, and the sid that the Server gave to it."""

    def __init__(self, wire: Wire, url: str, sid: str) -> None:
        self.wire, self.url, self.sid = wire, url, sid

    def auth(self, identity: Identity = DEVICE, **changes: Any) -> dict[str, Any]:
        """The CONNECT of a device that may enter, with changes."""
        facts = {"origin": self.url, "sid": self.sid, "at": int(time.time()), "token": TOKEN} | changes
        return {"token": TOKEN, "device": make_proof(identity, **facts)}

    async def connect(self, auth: object) -> dict[str, Any] | None:
        """`None` if it is accepted, else the refusal."""
        await self.wire.send(f"40/smcp,{auth if isinstance(auth, str) else json.dumps(auth)}")
        answer = await self.wire.receive()
        assert answer.startswith(("40/smcp,", "44/smcp,")), answer
        return None if answer.startswith("40") else json.loads(answer.partition(",")[2])["data"]

    async def code(self, auth: object) -> int | None:
        """That of the refusal; `None` if it is accepted."""
        return (await self.connect(auth) or {}).get("code")


async def code_at(url: str, auth_of: Callable[[Session], object]) -> int | None:
    """With which code a new session is refused; `None` if it is accepted."""
    async with session_at(url) as session:
        return await session.code(auth_of(session))


async def sit(office: str, agent: Session, computer: Session) -> None:
    """The two sessions prove their devices, and join as `planner` and `laptop`."""
    for session, role, name in ((agent, "agent", "planner"), (computer, "computer", "laptop")):
        assert await session.connect(session.auth()) is None
        await session.wire.join(role, name, office)


@asynccontextmanager
async def session_at(url: str, **headers: str) -> AsyncIterator[Session]:
    async with aiohttp.ClientSession() as http:
        socket = await http.ws_connect(f"{url}/socket.io/?EIO=4&transport=websocket", headers=headers)
        opened = await socket.receive_str(timeout=PATIENCE)
        yield Session(Wire(http, socket), url, json.loads(opened[1:])["sid"])
        await socket.close()
