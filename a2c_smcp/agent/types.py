"""Small types that several modules of the agent share."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from a2c_smcp.device_events import Sealing
from a2c_smcp.endpoint import Credentials

if TYPE_CHECKING:  # it needs the extra `devices`
    from a2c_smcp.devices.identity import Identity

__all__ = ["DEFAULT_TIMEOUT", "AgentAuthProvider", "DeviceOptions", "OutgoingCall", "Seat", "new_req_id"]

DEFAULT_TIMEOUT = 60
"""How long a tool may take by default, in seconds."""


class Seat(NamedTuple):
    """A computer in an office. A computer's name is unique in its office only."""

    office: str
    computer: str

    def __str__(self) -> str:
        return f"{self.office}/{self.computer}"


class DeviceOptions(NamedTuple):
    """Whether requests are sealed and answers checked, and with which keys."""

    e2e: Sealing
    verify: bool
    identity: Identity | None
    folder: Path | None
    origin: str


def new_req_id() -> str:
    return token_hex(16)


@dataclass(slots=True)
class OutgoingCall:
    """A tool call that an agent makes: which tool of which computer, and how long it may take."""

    computer: str
    tool: str
    params: dict[str, Any]
    timeout: float = DEFAULT_TIMEOUT
    office: str | None = None
    req_id: str = field(default_factory=new_req_id)


class AgentAuthProvider(Protocol):
    """Supplies the credentials of an agent. It is called on every dial, so a token may be refreshed each time."""

    def credentials(self) -> Credentials | Awaitable[Credentials]: ...
