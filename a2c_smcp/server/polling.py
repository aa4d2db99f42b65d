"""Long polling at the ASGI seam: requests are read whole and checked, and a poll that nobody awaits takes nothing."""

from __future__ import annotations

import asyncio
import base64
import binascii

from a2c_smcp.errors import BadRequest, CallTimeout, SMCPError, TooLarge
from a2c_smcp.server.wires import ASGIApp, Message, Receive, Scope, Send

__all__ = ["poll", "post"]

_SEPARATOR = "\x1e"
_PACKET_TYPES = tuple("0123456")


async def poll(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """A GET that waits for packets. When its client is gone it is cancelled: the library then ends the session.

    Raises what `app` refuses it with.
    """
    request = await receive()
    work = asyncio.ensure_future(app(scope, _replay(request), send))
    gone = asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (work, gone):
            task.cancel()
        outcome, _ = await asyncio.gather(work, gone, return_exceptions=True)
    if isinstance(outcome, SMCPError):
        raise outcome


async def post(app: ASGIApp, scope: Scope, receive: Receive, send: Send, *, limit: int, patience: float) -> None:
    """A POST that brings packets. Raises `BadRequest`, `TooLarge` or `CallTimeout` before any of them is handled."""
    body = await _read(receive, limit, patience)
    _check(body)
    headers = [
        (name, value) for name, value in scope["headers"] if name not in (b"content-length", b"transfer-encoding")
    ]
    headers.append((b"content-length", str(len(body)).encode()))
    await app({**scope, "headers": headers}, _replay({"type": "http.request", "body": body, "more_body": False}), send)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _read(receive: Receive, limit: int, patience: float) -> bytes:
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        try:
            message = await asyncio.wait_for(receive(), patience)
        except TimeoutError:
            raise CallTimeout("the body of the request did not come") from None
        if message["type"] != "http.request":
            raise BadRequest("the body of the request is incomplete")
        parts.append(message.get("body", b""))
        size, more = size + len(parts[-1]), message.get("more_body", False)
        if size > limit:
            raise TooLarge(f"at most {limit} bytes are taken in one request")
    return b"".join(parts)


def _check(body: bytes) -> None:
    """Whether the library can take all of these packets. It would drop the good ones with the first bad one."""
    try:
        packets = body.decode().split(_SEPARATOR)
        for packet in packets:
            if packet.startswith("b"):
                base64.b64decode(packet[1:], validate=True)
            elif not packet.startswith(_PACKET_TYPES):
                raise BadRequest("not an Engine.IO packet")
    except (UnicodeDecodeError, binascii.Error):
        raise BadRequest("not a list of Engine.IO packets") from None


def _replay(request: Message) -> Receive:
    async def receive() -> Message:
        return request

    return receive
