"""Keys files, and authentication providers that decide as a test says."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import socketio

from a2c_smcp.server import AuthenticationProvider, Principal
from a2c_smcp.server.auth.api_keys import hash_key
from a2c_smcp.server.auth.authentication import admit

SIO = socketio.AsyncServer(async_mode="asgi")


def write_keys(folder: Path, keys: Mapping[str, str | dict[str, Any]]) -> Path:
    """The file `keys.json` with the entries of these keys, or only with the names of their principals."""
    entries = {key: {"principal": entry} if isinstance(entry, str) else entry for key, entry in keys.items()}
    path = folder / "keys.json"
    path.write_text(json.dumps({hash_key(key): entry for key, entry in entries.items()}), "utf-8")
    return path


async def enter(
    provider: AuthenticationProvider, auth: object = None, headers: Mapping[str, str] | None = None, timeout: float = 5
) -> Principal:
    """The principal as which a client is admitted; raises if it is not."""
    return await admit(provider, SIO, {}, auth, headers or {}, timeout)


class Judged(AuthenticationProvider):
    """Asks a function, async or not, about the auth object of each client."""

    def __init__(self, judge: Callable[[Any], Any]) -> None:
        self._judge = judge

    async def authenticate(self, sio: Any, environ: Any, auth: Any, headers: Mapping[str, str]) -> Any:
        found = self._judge(auth)
        return await found if inspect.isawaitable(found) else found
