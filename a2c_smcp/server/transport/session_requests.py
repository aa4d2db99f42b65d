"""Requests under `/socket.io/` that are no websockets: sessions opened, polls, posts, and questions of browsers."""

from __future__ import annotations

import asyncio
from time import monotonic

from a2c_smcp.engine.packets import Malformed, encode_payload
from a2c_smcp.engine.session import POLLING
from a2c_smcp.errors import BadRequest, SMCPError
from a2c_smcp.server.http_requests import Fields, Request, Response, text_response
from a2c_smcp.server.transport.session_channel import Channel
from a2c_smcp.server.transport.sessions import Sessions

__all__ = ["respond", "session_of"]

_PER_TURN = 64


def session_of(request: Request, sessions: Sessions) -> Channel:
    """The session that a request belongs to. Raises `BadRequest`."""
    channel = sessions.get(request.parameter("sid") or "")
    if channel is None or (channel.is_closed and channel.is_fetched):
        raise BadRequest("no such session")
    return channel


async def respond(request: Request, sessions: Sessions, headers: Fields) -> Response:
    """Raises `SMCPError`, which ends the session that the request belongs to."""
    if request.method == "OPTIONS":
        return text_response(200, b"OK", headers)
    if request.parameter("transport") not in (None, "polling"):
        raise BadRequest("transport: there is polling, and websocket with an upgrade")
    if request.method == "GET":
        if request.parameter("sid") is None:
            return text_response(200, sessions.open(request, POLLING).session.open(), headers)
        packets = await _trusted(session_of(request, sessions), request).poll()
        if packets is None:
            raise BadRequest("this session is not polled here, or by somebody else already")
        return text_response(200, encode_payload(packets), headers)
    if request.method == "HEAD":  # of another node, before it reads a large body
        is_authenticated = session_of(request, sessions).session.is_authenticated
        return text_response(200 if is_authenticated else 404, b"", headers)
    if request.method != "POST":
        return text_response(405, b"Method not allowed", headers)
    await _post(request, _trusted(session_of(request, sessions), request))
    return text_response(200, b"OK", headers)


def _trusted(channel: Channel, request: Request) -> Channel:
    if channel.session.is_authenticated:
        request.body.trust()
    return channel


async def _post(request: Request, channel: Channel) -> None:
    """One at a time. What is not taken whole ends the session: it would go on with a gap."""
    try:
        with channel.posting():
            body = await request.body.read(channel.session.max_frame)
            for number, happening in enumerate(channel.session.receive_payload(body, monotonic())):
                if number % _PER_TURN == _PER_TURN - 1:
                    await asyncio.sleep(0)
                channel.handle(happening)
    except (Malformed, SMCPError, asyncio.CancelledError) as error:
        if channel.session.transport is POLLING:  # else a websocket has taken over, which this request cannot harm
            channel.abort()
        if isinstance(error, Malformed):
            raise BadRequest(f"not a list of Engine.IO packets: {error}") from None
        raise
    channel.flush()
