"""Requests under `/socket.io/`: sessions opened, polled, posted to, and taken over by a websocket."""

from __future__ import annotations

import asyncio
from time import monotonic

from a2c_smcp.engine.packets import Malformed, encode_payload
from a2c_smcp.engine.session import POLLING, WEBSOCKET
from a2c_smcp.errors import BadRequest, SMCPError
from a2c_smcp.server.http_requests import Headers, HttpRequest, HttpResponse, text_response
from a2c_smcp.server.transport.session_channel import SessionChannel
from a2c_smcp.server.transport.sessions import Sessions

__all__ = ["open_websocket", "respond"]

_PER_TURN = 64


def open_websocket(request: HttpRequest, sessions: Sessions) -> SessionChannel:
    """The session that a websocket belongs to: a new one, or one that it may try to take over. Raises `BadRequest`."""
    if request.parameter("transport") != WEBSOCKET:
        raise BadRequest("transport: a websocket is asked for as websocket")
    if request.parameter("sid") is None:
        return sessions.open(request, WEBSOCKET)
    channel = _session_of(request, sessions)
    if not channel.reserve():
        raise BadRequest("this session has a websocket already")
    return channel


async def respond(request: HttpRequest, sessions: Sessions, headers: Headers) -> HttpResponse:
    """Answers a request that is no websocket. Raises `SMCPError`."""
    if request.method == "OPTIONS":
        return text_response(200, b"OK", headers)
    if request.parameter("transport") not in (None, "polling"):
        raise BadRequest("transport: there is polling, and websocket with an upgrade")
    if request.method == "GET":
        if request.parameter("sid") is None:
            return text_response(200, sessions.open(request, POLLING).session.open(), headers)
        packets = await _trusted(_session_of(request, sessions), request).poll()
        if packets is None:
            raise BadRequest("this session is not polling, or another request polls it already")
        payload = encode_payload(packets)
        sessions.traffic.sent += len(payload)
        return text_response(200, payload, headers)
    if request.method == "HEAD":  # from another node, before it reads a large body
        is_authenticated = _session_of(request, sessions).session.is_authenticated
        return text_response(200 if is_authenticated else 404, b"", headers)
    if request.method != "POST":
        return text_response(405, b"Method not allowed", headers)
    sessions.traffic.received += await _post(request, _trusted(_session_of(request, sessions), request))
    return text_response(200, b"OK", headers)


def _session_of(request: HttpRequest, sessions: Sessions) -> SessionChannel:
    """The session that a request names. Raises `BadRequest`."""
    channel = sessions.get(request.parameter("sid") or "")
    if channel is None or (channel.is_closed and channel.is_fetched):
        raise BadRequest("no such session")
    return channel


def _trusted(channel: SessionChannel, request: HttpRequest) -> SessionChannel:
    if channel.session.is_authenticated:
        request.body.trust()
    return channel


async def _post(request: HttpRequest, channel: SessionChannel) -> int:
    """Handles the packets of a POST, one POST at a time. Returns its size.

    One that is not read as a whole ends the session, which would have a gap.
    """
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
    return len(body)
