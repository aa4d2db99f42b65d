"""What the parts of the transport know of one another.

A web server asks the `Application` for each request. A websocket (`Socket`) belongs to a `SocketOwner`, the channel of
its session, which writes to it and is told what comes. A channel belongs to the table of all sessions
(`SessionTable`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias, TypeVar

from a2c_smcp.engine.packets import Json, Outgoing
from a2c_smcp.server.cluster.proxy import ProxiedRequest
from a2c_smcp.server.connections import Connection
from a2c_smcp.server.http_requests import HttpRequest, HttpResponse
from a2c_smcp.server.hub import Hub
from a2c_smcp.server.mounts import MountedRequest

__all__ = ["Application", "CutReason", "SessionTable", "Socket", "SocketOwner", "Traffic"]

C = TypeVar("C")
CutReason: TypeAlias = Literal["slow_reader", "blocked", "flood", "crowd"]


class Traffic:
    """Bytes of messages from and to clients. Heads of frames and of HTTP are not counted."""

    __slots__ = ("received", "sent")

    def __init__(self) -> None:
        self.received = 0
        self.sent = 0


class Socket(Protocol):
    """A websocket of any web server."""

    is_blocked: bool

    @property
    def unwritten(self) -> int:
        """Bytes that the peer has not taken yet."""

    def trust(self) -> None:
        """The peer is authenticated."""

    def write(self, parts: Sequence[Json]) -> int:
        """Writes one text message, which comes in parts. Returns its size."""

    def write_all(self, packets: Sequence[Outgoing]) -> int:
        """Writes several messages. Returns their size."""

    def close(self, code: int = 1000) -> None: ...

    def abort(self) -> None: ...


class SocketOwner(Protocol):
    """Is told what comes over a websocket: the channel of its session."""

    def attach(self, socket: Socket) -> None:
        """From here on the websocket belongs to this owner."""

    def detach(self) -> None:
        """The websocket that was to be attached is gone before it was."""

    def heard(self, socket: Socket, text: bytes) -> None: ...

    def heard_binary(self, socket: Socket, data: bytes) -> None: ...

    def heard_too_much(self, socket: Socket) -> None:
        """The peer sent too many frames that carry nothing, or, before authentication, too large a message."""

    def blocked(self, socket: Socket) -> None:
        """The peer does not read what is written."""

    def unblocked(self, socket: Socket) -> None: ...

    def ended(self, socket: Socket) -> None: ...


class Application(Protocol):
    """Answers requests."""

    def is_mounted(self, path: str) -> bool:
        """Whether a mounted application answers requests to this path."""

    async def respond(self, request: HttpRequest) -> HttpResponse | MountedRequest: ...

    async def upgrade(self, request: HttpRequest) -> HttpResponse | SocketOwner | ProxiedRequest:
        """A refusal, the session that a websocket belongs to, or the request for the node that has its session."""


class SessionTable(Protocol[C]):
    """What a channel (`C`) needs of the table of all sessions."""

    hub: Hub
    blocked: dict[Socket, tuple[float, C]]
    traffic: Traffic

    async def connect(self, channel: C, auth: bytes) -> Connection:
        """Authenticates a CONNECT. Raises `SMCPError`, after a delay if its address was refused too often."""

    def is_authenticated(self, channel: C) -> None: ...

    def is_unauthenticated(self, channel: C) -> None: ...

    def schedule(self, channel: C) -> None:
        """Has to be called when the deadline of the session may have come nearer."""

    def count_cut(self, reason: CutReason) -> None: ...

    def cut(self, channel: C) -> None:
        """Ends a session whose client does not read, in a later step of the event loop."""

    def finished(self, channel: C) -> None:
        """The session has ended."""
