"""Responses of the program's own web server as bytes: whole ones, and the heads and parts of streamed ones."""

from __future__ import annotations

from collections.abc import Iterable
from email.utils import formatdate
from http import HTTPStatus
from time import time

from a2c_smcp.server.http_requests import Headers, HttpResponse

__all__ = ["CONTINUE", "chunk", "encoded", "end_of_chunks", "head", "own_headers"]

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_REASONS = {status.value: status.phrase for status in HTTPStatus}
_OF_THE_CONNECTION = frozenset({b"connection", b"date", b"keep-alive", b"transfer-encoding", b"upgrade"})


def encoded(response: HttpResponse, *, is_head: bool, keeps_alive: bool) -> bytes:
    """A whole response. `is_head`: the request was a HEAD, whose response has no body."""
    size = (b"content-length", b"%d" % len(response.body))
    begin = head(response.status, (*response.headers, size), keeps_alive=keeps_alive)
    return begin if is_head else begin + response.body


def head(status: int, headers: Iterable[tuple[bytes, bytes]], *, keeps_alive: bool) -> bytes:
    lines = [
        b"HTTP/1.1 %d %s" % (status, _REASONS.get(status, "").encode()),
        b"date: %s" % formatdate(int(time()), usegmt=True).encode(),
        *(b"%s: %s" % field for field in headers),
    ]
    if not keeps_alive:
        lines.append(b"connection: close")
    return b"\r\n".join([*lines, b"", b""])


def own_headers(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers that an application may choose. Raises `ValueError` for one that would end its line."""
    kept = [(bytes(name).lower(), bytes(value)) for name, value in headers]
    if any(mark in field for pair in kept for field in pair for mark in (b"\r", b"\n", b"\0")):
        raise ValueError("a header of a response has a line break")
    return [pair for pair in kept if pair[0] not in _OF_THE_CONNECTION]


def chunk(part: bytes) -> bytes:
    """A part of a body in chunks. An empty one would end the body, so it is left out."""
    return b"%x\r\n%s\r\n" % (len(part), part) if part else b""


def end_of_chunks() -> bytes:
    return b"0\r\n\r\n"
