"""What a parent tells one of its workers, and the line between them: it says when a worker serves, and who is left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass

__all__ = ["Lifeline", "Post", "is_ready"]

_VARIABLE = "A2C_WORKER_POST"
_READY = b"ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """A worker's place: its name, the store and the port that it shares, and where other nodes find it alone."""

    node: str
    redis: str
    port: int
    side_host: str
    side_port: int
    lifeline: int = -1

    @classmethod
    def from_environment(cls) -> Post | None:
        """What this process was told, if it is a worker. Nobody whom it starts is told the same."""
        told = os.environ.pop(_VARIABLE, None)
        return cls(**json.loads(told)) if told else None

    def environment(self) -> Mapping[str, str]:
        """That of a worker: a parent's own, and this post, which is no argument that others could read."""
        return {**os.environ, _VARIABLE: json.dumps(asdict(self))}


class Lifeline:
    """A worker's end of the line. When the other end is closed, its parent is gone, however it died."""

    def __init__(self, descriptor: int) -> None:
        self._line = socket.socket(fileno=descriptor)
        self._line.setblocking(False)

    def watch(self) -> None:
        """Ends this process, as SIGTERM would, if its parent is gone."""
        loop = asyncio.get_running_loop()

        def lost() -> None:
            loop.remove_reader(self._line)
            os.kill(os.getpid(), signal.SIGTERM)

        loop.add_reader(self._line, lost)

    def tell_ready(self) -> None:
        self._line.send(_READY)


async def is_ready(line: socket.socket) -> bool:
    """A parent waits until the worker at the other end serves; `False` if it has ended before."""
    line.setblocking(False)
    return await asyncio.get_running_loop().sock_recv(line, len(_READY)) == _READY
