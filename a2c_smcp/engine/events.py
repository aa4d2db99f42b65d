"""The events of a session: the closed union `Happening`. JSON is not parsed: bytes, or a view of a large frame."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, TypeAlias

from a2c_smcp.engine.packets import Json


class Event(NamedTuple):
    """`body` looks like a JSON array: the event's name and its arguments. With an `id` an ack is expected."""

    namespace: bytes
    id: int | None
    body: Json
    attachments: tuple[bytes, ...] = ()


class Ack(NamedTuple):
    """`body` looks like a JSON array: the arguments."""

    namespace: bytes
    id: int
    body: Json
    attachments: tuple[bytes, ...] = ()


class Fault(StrEnum):
    MALFORMED = "malformed"
    TOO_LARGE = "too large"
    ATTACHMENTS = "attachments"


class Faulty(NamedTuple):
    """A packet that is refused. With an `id`, answer it (an event) or fail its call (an ack); without, ignore it.

    `name` is the JSON of the event's name, or empty. `size` and `limit` are set for `TOO_LARGE`. A packet that came in
    place of an attachment is a happening of its own, `next`.
    """

    namespace: bytes
    id: int | None
    is_ack: bool
    name: bytes
    fault: Fault
    reason: str
    size: int = 0
    limit: int = 0
    next: Happening | None = None


class Connect(NamedTuple):
    """Server: answer with `accept` or `refuse`. Without a `body` it was too large to be read: refuse it, then close.

    `is_repeated`: this namespace is connected, or an earlier CONNECT to it is not answered yet.
    """

    namespace: bytes
    body: Json | None
    is_repeated: bool


class Connected(NamedTuple):
    """Client: the namespace is connected."""

    namespace: bytes
    body: Json


class ConnectRefused(NamedTuple):
    """Client: the namespace is not connected. `body` is the CONNECT_ERROR's."""

    namespace: bytes
    body: Json


class Disconnected(NamedTuple):
    """The peer left this namespace. The session goes on."""

    namespace: bytes


class Opened(NamedTuple):
    """Client: the session has begun. Times are in seconds."""

    sid: str
    upgrades: tuple[str, ...]
    ping_interval: float
    ping_timeout: float
    max_payload: int


class Upgraded(NamedTuple):
    """Server: the websocket is the transport from here on."""


class UpgradeFailed(NamedTuple):
    """Server: close the websocket that wanted to take over. The session goes on polling."""


class Message(NamedTuple):
    """An Engine.IO message of a `raw` session, without its `4`."""

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
    """The session has ended. This is its last happening."""

    reason: Reason


Happening: TypeAlias = (
    Event | Ack | Faulty | Connect | Connected | ConnectRefused | Disconnected
    | Opened | Upgraded | UpgradeFailed | Message | Closed
)  # fmt: skip
