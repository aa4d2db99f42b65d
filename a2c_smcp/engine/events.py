"""What a session makes of the bytes it is given: the closed union `Happening`."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, TypeAlias

from a2c_smcp.engine.packets import Json

__all__ = [
    "Ack",
    "Closed",
    "Connect",
    "Connected",
    "Disconnected",
    "Event",
    "Fault",
    "Faulty",
    "Happening",
    "Message",
    "Opened",
    "Reason",
    "Refused",
    "UpgradeFailed",
    "Upgraded",
]


class Event(NamedTuple):
    """`body` is a JSON array, unread: the event's name and its arguments. `id` asks for an ack."""

    namespace: bytes
    id: int | None
    body: Json
    attachments: tuple[bytes, ...] = ()


class Ack(NamedTuple):
    """`body` is a JSON array, unread: the arguments."""

    namespace: bytes
    id: int
    body: Json
    attachments: tuple[bytes, ...] = ()


class Fault(StrEnum):
    MALFORMED = "malformed"
    TOO_LARGE = "too large"
    ATTACHMENTS = "attachments"


class Faulty(NamedTuple):
    """An event or an ack that cannot be taken. With an `id` it is to be answered, or its caller told; else ignored.

    `name` is the name of the event, as JSON, if it could be read. `size` and `limit` belong to `TOO_LARGE`.
    """

    namespace: bytes
    id: int | None
    is_ack: bool
    name: bytes
    fault: Fault
    reason: str
    size: int = 0
    limit: int = 0


class Connect(NamedTuple):
    """To be answered by `accept` or `refuse`. `body` is `None` if it was too large to be read: refuse, then close.

    `is_repeated`: this namespace is connected, or its first CONNECT is not answered yet.
    """

    namespace: bytes
    body: Json | None
    is_repeated: bool


class Connected(NamedTuple):
    namespace: bytes
    body: Json


class Refused(NamedTuple):
    namespace: bytes
    body: Json


class Disconnected(NamedTuple):
    """The peer left this namespace. The session goes on."""

    namespace: bytes


class Opened(NamedTuple):
    """Times are in seconds."""

    sid: str
    upgrades: tuple[str, ...]
    ping_interval: float
    ping_timeout: float
    max_payload: int


class Upgraded(NamedTuple):
    """The websocket is the transport from here on."""


class UpgradeFailed(NamedTuple):
    """The websocket that wanted to take over is to be closed. The session goes on polling."""


class Message(NamedTuple):
    """Of a session that is `raw`: an Engine.IO message, without its `4`."""

    data: bytes
    is_binary: bool


class Reason(StrEnum):
    CLIENT = "the client closed"
    SERVER = "the server closed"
    PING_TIMEOUT = "ping timeout"
    HANDSHAKE = "no namespace was connected in time"
    REFUSED = "too many refused connects"
    PROTOCOL = "not an Engine.IO packet"
    DUPLICATE_POLL = "two polls at once"
    TRANSPORT = "the transport was lost"


class Closed(NamedTuple):
    """The last thing that happens to a session."""

    reason: Reason


Happening: TypeAlias = (
    Event
    | Ack
    | Faulty
    | Connect
    | Connected
    | Refused
    | Disconnected
    | Opened
    | Upgraded
    | UpgradeFailed
    | Message
    | Closed
)
