"""Small types that several modules of the agent share."""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from a2c_smcp.device_events import Sealing
from a2c_smcp.endpoint import Credentials

if TYPE_CHECKING:  # it needs the extra `devices`
    from a2c_smcp.devices.identity import Identity

__all__ = ["AgentAuthProvider", "DeviceOptions", "Seat"]


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


class AgentAuthProvider(Protocol):
    """Supplies the credentials of an agent. It is called on every dial, so a token may be refreshed each time."""

    def credentials(self) -> Credentials | Awaitable[Credentials]: ...
