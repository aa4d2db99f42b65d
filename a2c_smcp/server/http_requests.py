"""One HTTP request and one response, whichever web server carries them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol
from urllib.parse import parse_qs

from a2c_smcp.protocol.codec import dumps

__all__ = ["MAX_UNAUTHENTICATED", "Body", "Fields", "Request", "Response", "json_response", "text_response"]

Fields = Sequence[tuple[bytes, bytes]]

MAX_UNAUTHENTICATED = 64 * 1024
"""Bytes of a body that are taken of a client before it is authenticated (WIRE §6)."""


class Body(Protocol):
    """The body of a request. One that nobody reads is not waited for."""

    async def read(self, limit: int) -> bytes:
        """All of it. Raises `TooLarge`, `CallTimeout` or `BadRequest`."""

    def trust(self) -> None:
        """Its sender belongs to an authenticated session: it has more time, and does not count as a newcomer."""


@dataclass(frozen=True, slots=True)
class Request:
    """Names of headers are in lower case. `path` ends without a slash."""

    method: str
    path: str
    query: str
    headers: Fields
    scheme: str
    client: tuple[str, int] | None
    body: Body
    is_upgrade: bool = False

    def header(self, name: bytes) -> str:
        """The first value, or nothing."""
        return next((value.decode("latin-1") for field, value in self.headers if field == name), "")

    def parameter(self, name: str, *, blank: bool = False) -> str | None:
        """A value of the query. Engine.IO takes a blank one for none."""
        return next(iter(parse_qs(self.query, keep_blank_values=blank).get(name, ())), None)


class Response(NamedTuple):
    """Without its length, which whoever writes it knows."""

    status: int
    headers: Fields
    body: bytes


def text_response(status: int, body: bytes, headers: Fields = ()) -> Response:
    return Response(status, ((b"content-type", b"text/plain; charset=UTF-8"), *headers), body)


def json_response(status: int, body: Mapping[str, object], headers: Fields = ()) -> Response:
    return Response(status, ((b"content-type", b"application/json"), *headers), dumps(body).encode())
