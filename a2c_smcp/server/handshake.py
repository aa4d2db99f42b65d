"""The HTTP request that opened a connection, as far as authentication and versions look at it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

__all__ = ["Handshake"]


@dataclass(frozen=True, slots=True)
class Handshake:
    """`headers` have lower-case names; of a repeated one the last value is there. `client` is the peer's address.

    `sio` is the user's own Socket.IO server under `SMCPNamespace`, and `None` in ours.
    """

    headers: Mapping[str, str] = field(default_factory=dict)
    query: str = ""
    client: str | None = None
    scheme: str = "http"
    path: str = "/socket.io/"
    sio: Any = None
    own: dict[str, Any] | None = None

    @property
    def version(self) -> str | None:
        """The `a2c_version` that the client claims."""
        claimed: list[str | None] = [*parse_qs(self.query, keep_blank_values=True).get("a2c_version", [])]
        return claimed[0] if claimed else None

    @property
    def environ(self) -> dict[str, Any]:
        """The request in the shape that python-socketio gives to its users: WSGI's, with the ASGI scope inside."""
        if self.own is not None:
            return self.own
        scope = {
            "type": "http",
            "method": "GET",
            "scheme": self.scheme,
            "path": self.path,
            "query_string": self.query.encode("latin-1", "replace"),
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self.headers.items()],
            "client": (self.client, 0) if self.client else None,
        }
        return {
            "REQUEST_METHOD": "GET",
            "SCRIPT_NAME": "",
            "PATH_INFO": self.path,
            "QUERY_STRING": self.query,
            "RAW_URI": f"{self.path}?{self.query}" if self.query else self.path,
            "SERVER_PROTOCOL": "HTTP/1.1",
            "REMOTE_ADDR": self.client or "",
            "wsgi.url_scheme": self.scheme,
            "asgi.scope": scope,
            **{f"HTTP_{name.upper().replace('-', '_')}": value for name, value in self.headers.items()},
        }
