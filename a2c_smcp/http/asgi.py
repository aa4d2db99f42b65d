"""The types of ASGI, and how a message is read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, TypeAlias

__all__ = ["ASGIApp", "Message", "Receive", "Scope", "Send", "header", "until_disconnect"]

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


def header(message: Mapping[str, Any], name: bytes) -> str:
    """The first value of a header of a request, or of the start of a response; an empty string if there is none."""
    return next((value.decode("latin-1") for field, value in message["headers"] if field == name), "")


async def until_disconnect(receive: Receive) -> None:
    """Returns when the client of an HTTP request is gone. What is left of the body is dropped."""
    while (await receive())["type"] != "http.disconnect":
        pass
