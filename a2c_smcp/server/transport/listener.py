"""A listener with TLS, whose peers count as newcomers from the moment they are accepted.

Event loops accept and shake hands by themselves, but tell nobody of a peer that does not begin: it would be held for as
long as it may take, however many there are.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from functools import partial

from a2c_smcp.server.transport.http import Listener

__all__ = ["TLSDoor"]

_AFTER_A_FAILURE = 0.1  # such as too many open files


class TLSDoor:
    """Accepts until it is closed."""

    def __init__(self, listener: Listener, door: socket.socket, context: ssl.SSLContext) -> None:
        self._listener = listener
        self._door = door
        self._context = context
        self._handshakes: set[_Handshake] = set()
        self._accepting = asyncio.create_task(self._accept())

    def close(self) -> None:
        self._accepting.cancel()
        self._door.close()
        for handshake in list(self._handshakes):
            handshake.abort()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                peer, address = await loop.sock_accept(self._door)
            except OSError:
                await asyncio.sleep(_AFTER_A_FAILURE)
                continue
            handshake = _Handshake(asyncio.create_task(self._shake_hands(peer)))
            self._handshakes.add(handshake)
            self._listener.newcomers.add(handshake, self._listener.counted(address))
            handshake.task.add_done_callback(partial(self._is_over, handshake))

    async def _shake_hands(self, peer: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._listener.protocol,
                peer,
                ssl=self._context,
                ssl_handshake_timeout=self._listener.limits.handshake_timeout,
            )
        except (OSError, asyncio.CancelledError):
            peer.close()

    def _is_over(self, handshake: _Handshake, task: asyncio.Task[None]) -> None:
        self._handshakes.discard(handshake)
        self._listener.newcomers.discard(handshake)


class _Handshake:
    __slots__ = ("task",)

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task = task

    def abort(self) -> None:
        self.task.cancel()
